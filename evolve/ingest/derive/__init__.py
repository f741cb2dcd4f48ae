"""What follows from the sources: lives of requests, batches of steps, cycles, token times, clocks."""
