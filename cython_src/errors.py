"""The exceptions for what a user can mend."""


class UsageError(ValueError):
    """Bad input: one sentence with the rule, the value received and the remedy.

    The command line prints it without a traceback and exits with code 2.
    """


class MachineError(UsageError, RuntimeError):
    """What this process, its environment or the machine does not let happen: likewise one sentence with the remedy."""
