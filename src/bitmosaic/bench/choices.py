"""What is typed at an option of `bench` -> what is meant; and the peer that is there only if it was installed."""

from collections.abc import Iterable

from bitmosaic.errors import MissingExtraError, ParameterError


def choose_methods(names: str, methods: Iterable[str]) -> list[str]:
    """Names with commas, in any case -> those methods, in their own order."""
    known = {name.lower(): name for name in methods}
    chosen = [name.strip().lower() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in known]:
        raise ParameterError(
            f"Methods are {', '.join(known.values())}; got {', '.join(unknown)!r}. Separate them by commas."
        )
    return [name for key, name in known.items() if key in chosen]


def parse_numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ParameterError(f"{option} takes whole numbers from 1 on, with commas; got {text!r}.")
    return numbers


def import_faiss(command: str):
    try:
        import faiss
    except ImportError:
        raise MissingExtraError(f"{command} needs faiss: pip install 'bitmosaic[bench]'") from None
    return faiss
