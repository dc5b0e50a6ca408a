"""Fork-join execution: prange, persistent region, joblib."""
