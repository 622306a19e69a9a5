"""How good the tables are: what the search missed, measured against exhaustive search. Functions here may run Spark jobs."""
