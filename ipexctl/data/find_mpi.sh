# Of each program named: its path, what it says of itself, and what lies beside it (proxies, providers of libfabric), with
# tabs between them. Read by ipexctl.decide.launch.mpi_launchers.
PATH="$PATH:/usr/lib64/mpich/bin:/usr/lib64/openmpi/bin:/opt/intel/oneapi/mpi/latest/bin:/usr/local/bin"
for n in "$@"; do
    p=$(command -v "$n") || continue
    case $p in /*) ;; *) continue ;; esac
    v=$("$p" --version 2>&1 </dev/null | head -n 4 | tr "\n\t" "  ")
    d=${p%/*} x=
    for q in hydra_bstrap_proxy hydra_pmi_proxy orted prted; do
        [ -x "$d/$q" ] && x="$x $q"
    done
    for q in lib/prov lib/libfabric/prov libfabric/lib/prov opt/mpi/libfabric/lib/prov; do
        [ -d "${d%/*}/$q" ] && x="$x ${d%/*}/$q"
    done
    printf "%s\t%s\t%s\n" "$p" "$v" "$x"
done
