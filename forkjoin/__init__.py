"""Loop-by-loop execution: serial, prange, persistent region, joblib; OpenMP tasks and oneTBB as outside references."""
