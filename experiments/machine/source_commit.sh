# Print the commit of the sources in folder $1: the last one that changed what is built, so that a page changes nothing.
# "-dirty" follows it where the work tree differs. Archives have the commit in .git_archival.txt; else it is "unknown",
# and what git said goes to standard error.
cd "$1" || exit
built='api cython_src experiments forkjoin tasking meson.build pyproject.toml'
commit=
if test -e .git && commit=$(git log -1 --format=%H -- $built) && test -n "$commit"; then
    test -z "$(git --no-optional-locks status --porcelain -- $built)" || commit=$commit-dirty
else
    commit=$(sed -n 's/^node: \([0-9a-f]*\)$/\1/p' .git_archival.txt 2>/dev/null)
fi
echo "${commit:-unknown}"
