# Executes the agent of a run, $0, with these words. POSIX sh; ownership.sh stands before it.
find_fault "${0%/*/*}" "${0%/*}" "$0" "$0.pyz"
refuse_fault
exec "$0" "$@"
