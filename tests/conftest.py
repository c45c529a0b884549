"""For all tests: a suite that runs in the background of a shell ignores Ctrl-C, and so would what it starts."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
