"""Main file for `spark-submit`: `spark-submit --py-files spark_dedup-....whl scripts/submit.py run --config my.yaml`."""

from spark_dedup.cli import entry

entry()
