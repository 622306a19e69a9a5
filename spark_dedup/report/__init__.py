"""What a run found, for people: in the terminal and as one HTML file."""
