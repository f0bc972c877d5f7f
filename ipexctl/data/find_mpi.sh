# Of each program named: its path, what it says of itself, and what lies beside it (proxies, providers of libfabric), with
# tabs between them. $1: directories to look in beside PATH, $2: names of proxies. Read by
# ipexctl.decide.launch.mpi_launchers.
PATH="$PATH${1:+:$1}:/usr/local/bin" proxies=$2
shift 2
for n in "$@"; do
    p=$(command -v "$n") || continue
    case $p in /*) ;; *) continue ;; esac
    v=$("$p" --version 2>&1 </dev/null | head -n 4 | tr "\n\t" "  ")
    d=${p%/*} x=
    for q in $proxies; do
        [ -x "$d/$q" ] && x="$x $q"
    done
    for q in lib/prov lib/libfabric/prov libfabric/lib/prov opt/mpi/libfabric/lib/prov; do
        [ -d "${d%/*}/$q" ] && x="$x ${d%/*}/$q"
    done
    printf "%s\t%s\t%s\n" "$p" "$v" "$x"
done
