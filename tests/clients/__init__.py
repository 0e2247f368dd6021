"""Real clients against a server: `python -m tests.clients`, or `make test-clients`. pytest does not collect them."""
