"""Main file for `spark-submit --py-files spark_dedup.zip scripts/submit.py run --config my.yaml`; the zip is the wheel, renamed."""

from spark_dedup.cli import entry

entry()
