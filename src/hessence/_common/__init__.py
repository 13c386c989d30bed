"""What every room of the library uses: arrays, sums, files, messages."""
