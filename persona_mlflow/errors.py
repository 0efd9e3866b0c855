"""The errors that a user can cause, and can mend."""


class UserError(Exception):
    """The call, the spec or the data is wrong: one message that says what, where and how to mend it.

    The command line prints the message alone and exits with code 2, before anything was generated.
    """


def choices(value: str, valid: object) -> str:
    """Render the tail of a message that lists the valid values, the closest first.

    Args:
        value: What the user wrote.
        valid: An iterable of the valid values.

    Returns:
        ``"choose from a, b, c"``, preceded by ``"did you mean 'b'? "`` where one is close.
    """
    import difflib

    names = [str(v) for v in valid]  # type: ignore[attr-defined]
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}choose from {', '.join(names)}" if names else "there is nothing to choose from"
