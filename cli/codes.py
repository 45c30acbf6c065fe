"""The exit codes of the commands in words, for their help. docs/exit-codes.md gives the remedies."""

from typing import Final

CODES: Final = {
    0: "done, or stopped in order",
    1: "an error that none of these names",
    2: "wrong usage, settings, declarations, clock or limits; an embedded broker is in use; or the cluster refuses a "
    "log-in or a right",
    3: "another process has the name of this one, or it was expelled from the group",
    4: "a log of the application can't be used",
    5: "a record failed for good, and the policy is to stop",
    6: "the broker did not answer",
    7: "a source topic is missing, is another one, or lost records",
    8: "the local folder can't be used",
    9: "the state can't be trusted",
    70: "a defect of keylanes itself",
    130: "aborted by a third signal",
}


def epilog(*codes: int, **other: str) -> str:
    """The text below the options in a command's help. ``codes``: codes with the words of CODES; ``other``: codes with
    words of their own, e.g. ``code_1="…"``.
    """
    own = {int(name.removeprefix("code_")): words for name, words in other.items()}
    words = {code: own.get(code) or CODES[code] for code in sorted({*codes, *own})}
    return "Exit codes: " + "; ".join(f"{code} {said}" for code, said in words.items()) + ". See docs/exit-codes.md."
