# Executes the agent of a run, $0, with these words; ends 5 where its directory is gone. POSIX sh; ownership.sh stands before.
[ -d "${0%/*}" ] || exit 5
find_fault "${0%/*/*}" "${0%/*}" "$0" "$0.pyz"
refuse_fault
exec "$0" "$@"
