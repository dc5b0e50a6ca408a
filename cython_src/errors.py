"""The one exception for what a user can mend."""


class UsageError(ValueError):
    """Bad input: one sentence with the rule, the value received and the remedy.

    The command line prints it without a traceback and exits with code 2.
    """
