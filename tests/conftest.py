"""What holds for every test: Ctrl-C raises KeyboardInterrupt, as in a terminal. A process started in the background
of a shell inherits an ignored SIGINT, and so would every child that the tests start."""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
