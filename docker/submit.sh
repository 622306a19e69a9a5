#!/bin/sh
# Hand a command of spark-dedup to the cluster: docker compose run --rm submit doctor
set -eu
jars=$(find "$SPARK_DEDUP_JARS" -name '*.jar' | sort | paste -sd, -)
exec spark-submit \
  --master "${MASTER:-spark://master:7077}" \
  --jars "$jars" \
  --conf spark.driver.host="$(hostname -i)" \
  --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \
  --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \
  --conf spark.sql.execution.arrow.pyspark.enabled=true \
  "$(python -c 'import spark_dedup.__main__ as m; print(m.__file__)')" "$@"
