// A classic script in the head, so that the theme is set before the first paint.
document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";
