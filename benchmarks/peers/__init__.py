"""What benchmarks/versus.py is made of: peers in processes of their own, rounds, and the machine's limits."""
