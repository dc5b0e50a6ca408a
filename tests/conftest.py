"""What all tests need."""

import signal

# A shell starts background jobs with SIGINT ignored, and Python then leaves it so: Ctrl-C is tested all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)
