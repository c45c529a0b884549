"""The names under which files hold labels and paths, in any case of letters."""

LABEL_NAMES = ("labels", "label", "truelabel", "truth", "gt", "gnd", "y")
PATH_NAMES = ("path", "paths", "file", "files", "filename", "filenames")


def is_label_name(name: str) -> bool:
    return name.lower() in LABEL_NAMES


def is_path_name(name: str) -> bool:
    return name.lower() in PATH_NAMES
