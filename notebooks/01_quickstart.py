# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Quickstart
#
# `spark_dedup` reads a table of texts and writes tables that say which rows are copies of which. It removes nothing: what goes and what
# stays is a join that you write. This notebook runs the whole job on the sample that ships with the package, security advisories from
# three public databases that often describe the same flaw in the same words, and then uses what came out.
#
# **To open it** as a notebook: `pip install jupytext jupyterlab`, then *Open With > Notebook* in JupyterLab. `jupytext --to ipynb` makes
# the file that other tools import, Databricks among them. More in `docs/notebooks.md`.
#
# It needs `spark-dedup[spark35,use]`, or on a platform with its own Spark `spark-dedup[use]`. The first run takes about a minute.

# %%
import os
import sys
from pathlib import Path

import pandas as pd
from IPython.display import HTML, Markdown, display

from spark_dedup import TableStore, run, schema
from spark_dedup.demo import demo_config, write_source
from spark_dedup.errors import ConfigError
from spark_dedup.progress import Progress
from spark_dedup.session import get_session

pd.set_option("display.max_colwidth", 220)
spark = get_session()  # the session that is there, as it is; else a local one

# Where source and tables go; on a cluster, storage that all its machines share.
folder = Path(os.environ.get("SPARK_DEDUP_DEMO_FOLDER", "demo-output/notebooks")).absolute()


def left_aligned(frame: pd.DataFrame) -> HTML:
    """A table that reads from the left, for columns of text."""
    page = frame.to_html(na_rep="")
    for tag in ("td", "th"):
        page = page.replace(f"<{tag}>", f'<{tag} style="text-align: left">')
    return HTML(page.replace("text-align: right", "text-align: left"))


# %% [markdown]
# ## Settings
#
# A job needs to know where the texts are and where its tables go. Everything else has a default. In a file it looks like this, and
# `load_config("my.yaml")` reads it:
#
# ```yaml
# source: {table: main.kb.chunks, id: chunk_id, text: text}
# store: main.kb_dedup
# ```
#
# For the sample, `demo_config` fills that in. Its last argument takes further settings as `key=value`, as `--set` does on the command line.

# %%
config = demo_config(folder, "use", [])
rows = write_source(spark, folder)
Markdown(
    f"{rows:,} rows in `{config.source.table}`. Pairs with a cosine of at least {config.search.floor} are looked at, "
    f"and this rule decides which of them are copies: `{config.merge.condition}`"
)

# %% [markdown]
# Settings are checked before any work, all at once:

# %%
try:
    demo_config(folder, "use", ["search.flor=0.9", "search.neighbours=0"])
except ConfigError as error:
    display(Markdown(f"```\n{error}\n```"))

# %% [markdown]
# ## Run
#
# `run` takes the settings and a session, and returns a manifest: what each stage read, wrote, counted and decided.

# %%
manifest = run(config, spark, progress=Progress(sys.stdout, "plain"))

# %%
stages = pd.DataFrame(
    {
        "stage": stage.stage,
        "rows out": f"{stage.rows_out:,}",
        "counts": ", ".join(f"{name} {count:,}" for name, count in stage.counts.items()),
        "limits reached": ", ".join(f"{name} {count:,}" for name, count in stage.caps_hit.items()) or "none",
        "seconds": round(stage.seconds, 1),
    }
    for stage in manifest.stages
)
left_aligned(stages.set_index("stage"))

# %%
keys, pairs, found = (manifest.stage(name).counts for name in ("representatives", "candidates", "clusters"))
Markdown(
    f"**{rows:,} rows are {keys['keys']:,} different texts.** Among these the search found {pairs['pairs']:,} similar pairs, of which "
    f"the rule accepts {pairs['edges']:,} ({manifest.recall}). Exact copies and accepted pairs together make {found['clusters']:,} "
    f"clusters, and {found['removable_rows']:,} rows could go."
)

# %% [markdown]
# ## The table to join
#
# `clusters` has every source row exactly once. `canonical_id` is the row that its cluster keeps, `match_kind` says how a row got there.
# Joined to the source, the largest cluster looks like this. It is the one to read first: a short text is an excerpt of every longer one
# that has its words, so short titles gather, and not all of these need be about one flaw.

# %%
store = TableStore(spark, config.store)
source = spark.read.format("delta").load(config.source.table)
clusters = store.read(schema.CLUSTERS)
source.createOrReplaceTempView("advisories")
clusters.createOrReplaceTempView("clusters")

largest = spark.sql("""
    SELECT c.cluster_id, c.record_id, c.is_canonical, c.match_kind, round(c.cosine, 3) AS cosine,
           s.package, left(s.text, 90) AS text
    FROM clusters c JOIN advisories s ON s.id = c.record_id
    WHERE c.cluster_id = (SELECT min_by(cluster_id, struct(-cluster_size, cluster_id)) FROM clusters)
    ORDER BY c.is_canonical DESC, c.record_id
""")
left_aligned(largest.toPandas())

# %%
clusters.groupBy("match_kind").count().orderBy("match_kind").toPandas().set_index("match_kind")

# %% [markdown]
# ## The table without its duplicates
#
# One join. Rows that stand alone and rows without text are canonical too, so nothing else is lost:

# %%
deduplicated = spark.sql("""
    SELECT s.* FROM advisories s JOIN clusters c ON s.id = c.record_id
    WHERE c.is_canonical
""")
kept = deduplicated.count()
Markdown(f"{rows:,} rows before, **{kept:,} rows after**, {rows - kept:,} gone.")

# %% [markdown]
# Before anything is removed for good: each row that would go, beside the row that stays. Exact copies need no look, so here are the near
# ones, the least similar first. The cosine is empty where two rows met only by way of a third.

# %%
removals = spark.sql("""
    SELECT c.record_id AS goes, c.canonical_id AS stays, round(c.cosine, 3) AS cosine, round(c.jaccard, 2) AS jaccard,
           left(gone.text, 200) AS text_that_goes, left(kept.text, 200) AS text_that_stays
    FROM clusters c
    JOIN advisories gone ON gone.id = c.record_id
    JOIN advisories kept ON kept.id = c.canonical_id
    WHERE NOT c.is_canonical AND c.match_kind = 'near'
    ORDER BY c.cosine NULLS LAST, c.record_id
    LIMIT 5
""")
left_aligned(removals.toPandas())

# %% [markdown]
# ## A second run does nothing
#
# Source and settings are the same, every stage is there, so none is done again. Under other settings this store would be refused, with the
# setting, both values and the way out in the message. After a failure, `run` goes on from the last finished stage.

# %%
again = run(config, spark)
Markdown(f"Did work: **{again.did_work}**. Same run: {again.run_id == manifest.run_id}. It took {again.seconds:.1f} s to find that out.")

# %% [markdown]
# ## What else is kept
#
# `set_aside` lists rows that a step could not use as they are: no text, an unusable vector, text longer than the model reads, odd
# characters. They are counted here and still stand in `clusters`. The sample has none; on a table of yours, look here first.

# %%
store.read(schema.SET_ASIDE).groupBy("reason").count().toPandas()

# %% [markdown]
# `runs` holds every stage of every run: settings, fingerprint, counts, limits, decisions and seconds.

# %%
runs = store.read(schema.RUNS).orderBy("finished_at").select("stage", "status", "rows_out", "seconds", "caps_hit", "notes")
left_aligned(runs.toPandas().astype({"rows_out": "Int64"}))

# %% [markdown]
# Every stored pair with its scores, and how to try another rule on them: [02_candidate_pairs](02_candidate_pairs.py).
