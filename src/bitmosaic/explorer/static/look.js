// A classic script in the head: the look is set before the first paint.
document.documentElement.dataset.look = localStorage.getItem("look") || "auto";
