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
# # Candidate pairs
#
# A duplicate is decided in two steps. The search brings pairs of texts whose vectors lie close together. Then the merge rule, a SQL
# condition over the scores of a pair, accepts or refuses each. All pairs are stored with their scores, so the rule can be looked at, and
# moved, without searching again. This notebook looks at the pairs of the sample.
#
# **To open it** as a notebook: `pip install jupytext jupyterlab matplotlib`, then *Open With > Notebook* in JupyterLab.
# `jupytext --to ipynb` makes the file that other tools import, Databricks among them. More in `docs/notebooks.md`.

# %%
import html
import os
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, Markdown
from pyspark.sql import Column, Window
from pyspark.sql import functions as F

from spark_dedup import TableStore, run, schema
from spark_dedup.demo import demo_config, write_source
from spark_dedup.progress import Progress
from spark_dedup.report.pairs import Span, mark_differences, refusal_reason, visible
from spark_dedup.report.story import percent, scores
from spark_dedup.report.summary import PairView
from spark_dedup.session import get_session

pd.set_option("display.max_colwidth", 220)
plt.rcParams.update({"figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})
ACCEPTED, REFUSED = "#0b6e66", "#d98a4b"

spark = get_session()
# Where source and tables go; on a cluster, storage that all its machines share.
folder = Path(os.environ.get("SPARK_DEDUP_DEMO_FOLDER", "demo-output/notebooks")).absolute()
config = demo_config(folder, "use", [])
write_source(spark, folder)
manifest = run(config, spark, progress=Progress(sys.stdout, "plain"))  # nothing to do where the quickstart has run
rule, floor = config.merge.condition, config.search.floor

# %% [markdown]
# ## What is stored of a pair

# %%
pairs = TableStore(spark, config.store).read(schema.CANDIDATE_PAIRS)
Markdown(
    "| column | meaning |\n|:--|:--|\n" + "\n".join(f"| `{column.name}` | {column.doc} |" for column in schema.CANDIDATE_PAIRS.columns)
)

# %%
counts = manifest.stage("candidates").counts
Markdown(
    f"**{counts['pairs']:,} pairs** with a cosine of at least {floor}. The rule `{rule}` accepts **{counts['edges']:,}** of them and "
    f"refuses {counts['refused']:,} ({manifest.recall})."
)

# %% [markdown]
# ## Bands of cosine
#
# If cosine alone could decide, the share of accepted pairs would jump from nothing to everything somewhere. It does not: even among the
# most similar pairs most are refused.

# %%
BANDS = 6
width = (1 - floor) / BANDS
number = F.least(F.expr(f"width_bucket(cosine, {floor}, 1.0, {BANDS})"), F.lit(BANDS))  # the last band includes 1
banded = pairs.withColumn("band", number)
bands = banded.groupBy("band").agg(F.count("*").alias("pairs"), F.count(F.when(F.col("is_edge"), 1)).alias("accepted")).orderBy("band")
pd.DataFrame(
    {
        "cosine": f"{floor + (row['band'] - 1) * width:.3f} to {floor + row['band'] * width:.3f}",
        f"pairs ({manifest.recall})": f"{row['pairs']:,}",
        "accepted": f"{row['accepted']:,}",
        "share accepted": percent(row["accepted"], row["pairs"]),
    }
    for row in bands.collect()
).set_index("cosine")

# %% [markdown]
# ## Side by side
#
# From the highest, a middle and the lowest band: one pair that the rule accepts and one that it refuses. Words that differ are marked as
# written, while the scores ignore case; an ellipsis stands for text left out. A hash of the ids decides which pairs are shown, so they are
# the same every time. Judge for yourself: in a long text one name may be replaced and the rule still accept.


# %%
def examples(chosen: Column, per: tuple[str, ...] = ("band", "is_edge"), each: int = 1) -> list[PairView]:
    """The first pairs by hash of each group, with their texts."""
    order = Window.partitionBy(*per).orderBy(F.xxhash64("left_id", "right_id"), "left_id", "right_id")
    few = banded.where(chosen).withColumn("place", F.row_number().over(order)).where(F.col("place") <= each)
    texts = spark.read.format("delta").load(config.source.table)
    left, right = (texts.select(F.col("id").alias(f"{side}_record"), F.col("text").alias(f"{side}_text")) for side in ("left", "right"))
    found = few.join(left, "left_record", how="inner").join(right, "right_record", how="inner")
    rows = found.orderBy(F.desc("band"), F.desc("is_edge"), "place").select(*[f.name for f in fields(PairView) if f.name in found.columns])
    return [PairView(**row.asDict()) for row in rows.collect()]


def marked(spans: Iterable[Span]) -> str:
    """A text as HTML, its differing words marked."""
    return "".join(f"<mark>{html.escape(visible(s.text))}</mark>" if s.changed else html.escape(visible(s.text)) for s in spans)


def side_by_side(pairs: Iterable[PairView]) -> HTML:
    """Both texts of each pair, its scores and the rule's verdict."""
    parts = []
    for pair in pairs:
        verdict = "accepted" if pair.is_edge else f"refused: {refusal_reason(pair, rule)}"
        told = " &nbsp; ".join(f"{name} <b>{value}</b>" for name, value in scores(pair))
        sides = zip((pair.left_record, pair.right_record), mark_differences(pair.left_text, pair.right_text, 500), strict=True)
        columns = "".join(
            f'<div style="flex: 1; min-width: 0; overflow-wrap: anywhere"><code>{html.escape(record)}</code><br>{marked(spans)}</div>'
            for record, spans in sides
        )
        parts.append(
            f'<div style="border-left: 4px solid {ACCEPTED if pair.is_edge else REFUSED}; padding-left: 1em; margin-bottom: 2em">'
            f"<b>{html.escape(verdict)}</b><br>{told}"
            f'<div style="display: flex; gap: 2em; margin-top: .5em; line-height: 1.4">{columns}</div></div>'
        )
    return HTML("".join(parts))


side_by_side(examples(F.col("band").isin(1, BANDS // 2 + 1, BANDS)))

# %% [markdown]
# ## Cosine against Jaccard
#
# Cosine compares what two texts are about, Jaccard the five-word sequences they share. A pair in the lower right says the same kind of
# thing in other words. A pair in the upper right may still be one form filled in twice.
#
# The stripes across the picture are such forms. In the lower two nearly every pair is two TensorFlow advisories, which begin and end with
# the same sentences; most pairs of the upper one share a long note that the Go database appends. No line through this picture parts the
# accepted pairs from the refused ones, which is why the rule asks something else.

# %%
MOST = 20_000  # points of one verdict that a picture can show; of more, the first by hash of the ids
by_hash = (F.xxhash64("left_id", "right_id"), F.col("left_id"), F.col("right_id"))
looks = {
    "refused": {"s": 7, "c": REFUSED, "alpha": 0.18, "edgecolors": "none"},
    "accepted": {"s": 34, "c": ACCEPTED, "edgecolors": "white", "linewidths": 0.5},  # drawn last, so above the others
}
figure, axes = plt.subplots(figsize=(8, 5.2))
for verdict, look in looks.items():
    of_verdict = pairs.where(F.col("is_edge") == (verdict == "accepted"))
    points = of_verdict.orderBy(*by_hash).limit(MOST).select("cosine", "jaccard").toPandas()
    total = counts["edges" if verdict == "accepted" else "refused"]
    label = f"{verdict}: {total:,} pairs" + (f", {MOST:,} shown" if total > MOST else "")
    axes.scatter(points["cosine"], points["jaccard"], label=label, **look)
axes.set(xlabel="cosine", ylabel="Jaccard of word 5-grams", xlim=(floor, 1.003), ylim=(-0.02, 1.02))
axes.set_title(f"{rule}\n({manifest.recall})", fontsize=10)
for handle in axes.legend(loc="upper left", frameon=False).legend_handles:
    handle.set(alpha=1, sizes=[30])
plt.show()

# %% [markdown]
# ## Substitution and numbers
#
# A copy differs by what was added or cut; a filled-in form differs by what was *replaced*. `substitution` is that share: 0 for a text and
# its excerpt, large for two fillings of one form. `numbers` says whether the numbers of the two texts are the `same`, whether those of one
# are all `contained` in the other's, or whether they `differ`. Words alone are not enough: at the left edge of this picture there are pairs
# with next to nothing replaced whose numbers differ.

# %%
STEP = 0.02
binned = pairs.groupBy(F.floor(F.col("substitution") / STEP).cast("int").alias("bin"), "numbers").count().toPandas()
table = binned.pivot(index="bin", columns="numbers", values="count").fillna(0)
table = table.reindex(range(int(table.index.max()) + 1), fill_value=0)
figure, axes = plt.subplots(figsize=(8, 3))
for kind, colour in (("same", ACCEPTED), ("contained", "#5b7fb5"), ("differ", REFUSED)):
    if kind in table:
        axes.stairs(table[kind], [STEP * edge for edge in range(len(table) + 1)], color=colour, linewidth=1.8, label=f"numbers {kind}")
axes.set(xlabel="substitution", ylabel="pairs", yscale="log", ylim=(0.8, 10 * table.to_numpy().max()), xlim=(0, None))
axes.yaxis.set_major_formatter("{x:,.0f}")
axes.set_title(f"Pairs by share of words replaced ({manifest.recall})", fontsize=10)
axes.legend(loc="upper center", ncols=3, frameon=False)
plt.show()

# %% [markdown]
# Some of those at the left edge. Without the second half of the rule each would be merged:

# %%
side_by_side(examples(F.expr("substitution <= 0.02 and numbers = 'differ'"), per=("numbers",), each=3))

# %% [markdown]
# ## Another rule, without another run
#
# The scores are stored, so a rule is one expression over this table:

# %%
rules = [
    rule,
    "substitution <= 0.02",
    "substitution = 0 and numbers in ('same', 'contained')",
    "substitution <= 0.05 and numbers = 'same'",
    "jaccard >= 0.8",
    "jaccard >= 0.5",
    "cosine >= 0.95",
]
accepts = [F.coalesce(F.expr(text), F.lit(False)) for text in rules]
tally = pairs.agg(
    *[F.count(F.when(yes, 1)).alias(f"all_{n}") for n, yes in enumerate(accepts)],
    *[F.count(F.when(yes & F.col("is_edge"), 1)).alias(f"both_{n}") for n, yes in enumerate(accepts)],
).first()
pd.DataFrame(
    {
        "rule": text,
        f"accepts ({manifest.recall})": tally[f"all_{n}"],
        "not accepted now": tally[f"all_{n}"] - tally[f"both_{n}"],
        "accepted now and lost": counts["edges"] - tally[f"both_{n}"],
    }
    for n, text in enumerate(rules)
).set_index("rule")

# %% [markdown]
# These are pairs, not clusters: pairs that look right one by one can chain through a template into one large cluster. So read some of the
# pairs a rule would add, as above with `examples(F.expr("jaccard >= 0.8 and not is_edge"), per=("band",))`, before it is used:
#
# ```python
# config = demo_config(folder, "use", ["merge.rule=substitution <= 0.05 and numbers = 'same'"])
# run(config, spark, rebuild=True)   # the store's tables are made anew; the embeddings are kept
# ```
