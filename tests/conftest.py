"""For all tests: a suite that runs in the background of a shell ignores Ctrl-C, and so would what it starts.

And no test is timed: the machine may be busy, and a kernel may have to be compiled first.
"""

import signal

from hypothesis import settings

signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
