"""`python -m spark_dedup`: the same as the command `spark-dedup`."""

from spark_dedup.cli import entry

if __name__ == "__main__":
    entry()
