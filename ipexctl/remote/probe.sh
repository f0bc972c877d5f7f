# What a host says about itself. Runs as `sh -s -- NONCE LIMIT CAP VENV WORKDIR [NAME...]`, this text on its standard
# input, under dash, busybox ash or bash; needs nothing but sh, and uses what else is there. It changes nothing.
#
# The answer is framed: a line `NONCE begin KIND NAME`, the text, a line `NONCE end STATUS`; `NONCE done` is the last.
# Whatever stands outside of the frames (login banners, rc files that talk) is not ours. KIND is
#   file     NAME is a path, the text its content
#   grep     lines `path:line` of many small files; a relative path is relative to NAME
#   command  NAME is the command, or our word for a question
# STATUS 137 says that the item was killed at the time limit, 141 that it was cut at CAP bytes; what came before is kept.
#
# All questions are asked at the same time: each is a stage of one pipeline that asks, says its own answer and then
# passes on what the stages before it said. So nothing is written to disk, answers never mix, and the whole probe takes
# as long as its slowest question, at most LIMIT seconds.
#
# The function is read to its end before anything runs, so that no command can swallow the rest of this text.

probe() {
    nonce=$1 limit=$2 cap=$3 venv=$4 work=$5
    shift 5
    path=$PATH
    newline='
'
    PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
    LC_ALL=C
    IPEXCTL_PROBE=$nonce # how leftovers are told from other people's processes
    export PATH LC_ALL IPEXCTL_PROBE
    unset LANGUAGE
    case $venv in "~/"*) venv=$HOME/${venv#"~/"} ;; esac
    case $work in "~/"*) work=$HOME/${work#"~/"} ;; esac
    names=$*
    processor=$(cpuinfo)

    sleep "$limit" >/dev/null &
    nap=$!
    {
        {
            say command env environment
            say command date clock
            say command 'ls -l /proc/self/ns' namespaces
            say file /proc/cpuinfo printf '%s\n' "$processor"
            say grep /sys/devices/system/cpu kernel
            say command libraries libraries
            item command 'ip addr' addresses
            told || item command lscpu lscpu
            calm || item command ps heavy
        } | {
            item command 'python -V' pythons
            case $processor in *" amx_tile"*) item command amx tiles ;; esac
            pass
        } | {
            item command 'mpirun --version' launchers
            pass
        } | {
            item command 'df -Pk /dev/shm /tmp' space /dev/shm /tmp
            pass
        } | {
            item command 'df -Pk' space "$venv" "$work" "$HOME"
            say command 'command -v' tools
            say command venv environment_at "$venv"
            pass
        } | {
            item command 'getent hosts' addresses_of_names
            pass
        } | at_once
        kill "$nap"
    } &
    job=$!
    if wait "$nap"; then # the nap ended by itself: time is up
        how=gently
        while kill -0 "$job"; do
            stop_questions "$how"
            how=surely
            sleep 0.2 || sleep 1
        done
        item command left leftovers
    fi
    wait "$job"
    printf '\n%s done\n' "$nonce"
}

# A question that cannot hang or run wild, and its frame: straight to our output.
say() {
    printf '\n%s begin %s %s\n' "$nonce" "$1" "$2"
    shift 2
    "$@"
    printf '\n%s end 0\n' "$nonce"
}

# A question that can. Its answer goes through a variable, so that a process that cannot be killed (waiting for a dead
# file system) holds on to nothing that somebody reads.
item() {
    kind=$1 name=$2
    shift 2
    answer=$({ "$@" </dev/null; printf '\n%s' "$nonce"; } | head -c "$cap")
    case $answer in
    *"$nonce") status=0 answer=${answer%"$nonce"} ;;
    *) if kill -0 "$nap"; then status=141; else status=137; fi ;; # cut, or killed
    esac
    printf '\n%s begin %s %s\n%s\n%s end %s\n' "$nonce" "$kind" "$name" "$answer" "$nonce" "$status"
}

pass() { exec cat; }

# The whole answer in one piece: each write becomes a packet, which a client with hundreds of hosts has to take.
at_once() {
    command -v dd >/dev/null && exec dd ibs=65536 obs=1048576
    exec cat
}

# Kills what the stages wait for, not the stages: everything two levels or more below the pipeline's shell. At first not
# those who carry the answers ("head", and the shell around it): they end by themselves and pass on what had been said,
# unless somebody who cannot be killed holds on to them.
stop_questions() {
    family=
    for stat in /proc/[0-9]*/stat; do
        read -r line <"$stat" || continue
        pid=${line%% *} comm=${line#*(} line=${line##*) }
        comm=${comm%%)*} line=${line#* }
        family="$family $pid:$comm:${line%% *}"
    done
    for stage in $(children "$job"); do
        for carrier in $(children "$stage"); do
            if [ "$1" = gently ]; then
                for writer in $(children "$carrier" head); do kill -9 "$writer" $(descendants "$writer"); done
            else
                kill -9 "$carrier" $(descendants "$carrier")
            fi
        done
    done
}

# Of process $1, but those named $2. (A name with blanks or colons in it is cut by this list, and then is not "head".)
children() {
    for entry in $family; do
        case $entry in
        *":${2-:}:$1") ;;
        *":$1") echo "${entry%%:*}" ;;
        esac
    done
}

descendants() {
    for descendant in $(children "$1"); do
        echo "$descendant"
        descendants "$descendant"
    done
}

# What carries our mark and lives on after all (it was born while its parents were killed, or left their session): killed,
# and named if that does not help.
leftovers() {
    for try in 1 2; do
        for environ in $(grep -ls "IPEXCTL_PROBE=$nonce" /proc/[0-9]*/environ); do
            pid=${environ#/proc/}
            pid=${pid%/environ}
            read -r comm <"/proc/$pid/comm" || continue
            case $comm in grep | head) continue ;; esac # ours, right now
            if [ "$try" = 1 ]; then kill -9 "$pid"; else echo "$pid $comm"; fi
        done
    done
}

# --- the kernel's own files ------------------------------------------------------------------------------------------

# Two greps for everything: on a machine with 256 CPUs these are 600 files, and each further process costs a millisecond.
kernel() {
    cgroups=
    while read -r line; do
        group=${line#*:} # hierarchy:controllers:path
        controllers=${group%%:*} group=${group#*:}
        case $controllers in
        '') root=/sys/fs/cgroup ;;
        cpu | cpu,* | *,cpu | *,cpu,* | memory) root=/sys/fs/cgroup/$controllers ;;
        *) continue ;;
        esac
        group=${group%/}
        while :; do # a limit of any group above holds too
            dir=$root$group
            cgroups="$cgroups $dir/cpu.max $dir/cpu.cfs_quota_us $dir/cpu.cfs_period_us $dir/memory.max"
            cgroups="$cgroups $dir/memory.limit_in_bytes $dir/pids.max"
            [ -n "$group" ] || break
            group=${group%/*}
        done
    done </proc/self/cgroup
    for there in /sys/class/net/*/device /sys/class/net/*/bonding /sys/class/net/*/bridge /sys/class/net/*/brif/*; do
        [ -e "$there" ] && printf '%s:\n' "$there"
    done
    cd /sys/devices/system/cpu || cd /
    grep -sH '' online offline present smt/active cpu0/cpufreq/scaling_governor \
        cpu[0-9]*/topology/physical_package_id cpu[0-9]*/topology/thread_siblings_list \
        /sys/devices/system/node/online /sys/devices/system/node/node[0-9]*/cpulist \
        /sys/devices/cpu_core/cpus /sys/devices/cpu_atom/cpus \
        /sys/kernel/mm/transparent_hugepage/enabled /sys/hypervisor/type \
        /sys/class/dmi/id/sys_vendor /sys/class/dmi/id/product_name \
        /sys/class/net/*/speed /sys/class/net/*/mtu /sys/class/net/*/operstate \
        /proc/sys/kernel/hostname /proc/sys/kernel/osrelease /proc/sys/kernel/arch /proc/sys/kernel/random/boot_id \
        /proc/sys/kernel/numa_balancing /proc/sys/net/ipv4/ip_local_port_range \
        /proc/loadavg /proc/self/cgroup /proc/self/limits /proc/net/route /proc/net/if_inet6 \
        /etc/machine-id /var/lib/dbus/machine-id /etc/os-release $cgroups
    # of the mounts only those that matter: a host with many containers has thousands, with long lines
    mounts='^[0-9]+ [0-9]+ [0-9:]+ [^ ]+ (/|/(home|root|tmp|scratch|data|dev/shm)(/[^ ]*)?) '
    mounts="$mounts| - (cgroup2?|nfs4?|lustre|gpfs|beegfs|ceph|cifs|smb3|9p|virtiofs|fuse[.a-z]*) "
    grep -sH -E "Mem(Total|Free|Available):|HugePages_|Hugepagesize:|allowed_list:|$mounts" \
        /proc/meminfo /proc/self/status /proc/self/mountinfo /sys/devices/system/node/node[0-9]*/meminfo
}

# All blocks are alike where sysfs tells the topology: the first is enough (on 256 CPUs the file has half a megabyte).
cpuinfo() {
    if [ -r /sys/devices/system/cpu/cpu0/topology/thread_siblings_list ]; then
        sed '/^$/q' /proc/cpuinfo
    else
        sed -e '1,/^$/b' -e '/^flags/d' -e '/^bugs/d' -e '/^vmx/d' -e '/^power/d' /proc/cpuinfo
    fi
}

# Do the kernel's files say enough? On 256 CPUs lscpu costs more time than all the rest.
told() {
    case $processor in *flags*) [ -r /sys/devices/system/cpu/cpu0/topology/thread_siblings_list ] ;; *) false ;; esac
}

# --- questions to the shell ------------------------------------------------------------------------------------------

environment() {
    for name in HOME SHELL SSH_CONNECTION VIRTUAL_ENV CONDA_PREFIX SLURM_JOB_ID PBS_JOBID LSB_JOBID; do
        eval "value=\${$name-}"
        [ -n "$value" ] && printf '%s=%s\n' "$name" "$value"
    done
    printf 'PATH=%s\nuser=%s\nvenv=%s\nworkdir=%s\n' "$path" "${LOGNAME:-$(id -un)}" "$venv" "$work"
    for mark in /.dockerenv /run/.containerenv /etc/slurm/slurm.conf /etc/slurm-llnl/slurm.conf /etc/pbs.conf \
        /etc/lsf.conf /proc/vz; do
        [ -e "$mark" ] && printf 'there=%s\n' "$mark"
    done
}

clock() { date +%s.%N; }

# Equal only where two entries of a host file are one and the same machine: the boot id alone is equal in all containers.
namespaces() { ls -ln /proc/self/ns; } # numbers: to look up names of users costs more than the rest

# Who else works here is worth asking only where the load says that somebody does.
calm() {
    read -r load rest </proc/loadavg
    [ "${load%%.*}" -eq 0 ]
}

# Those that use 10 % of a CPU or more: what idles is nobody's business, and there may be thousands.
heavy() { ps -eo pcpu=,etime=,user=,pid=,comm= | grep -E '^ *[0-9][0-9]'; }

addresses() { ip addr show || ifconfig -a || cat /proc/net/fib_trie; }

tools() {
    for tool in bash python3 rsync tar zstd gzip numactl taskset lscpu setsid systemd-run gcc g++ cc uv git ssh curl \
        srun sbatch sinfo qsub bsub module gdb py-spy perf ethtool; do
        command -v "$tool"
    done
}

# One file by several names (/bin is /usr/bin, mpiexec is mpirun) is asked once: starting one costs more than all the rest.
launchers() {
    IFS=:
    set -f
    dirs=$path
    set --
    for dir in $dirs; do
        for name in mpirun mpiexec; do
            file=${dir:-.}/$name
            [ -x "$file" ] && [ -f "$file" ] || continue
            for known in "$@"; do [ "$file" -ef "$known" ] && continue 2; done
            set -- "$@" "$file"
            {
                version=$("$file" --version 2>&1)$newline
                first=${version%%"$newline"*} version=${version#*"$newline"}
                printf '%s\t%s %s\n' "$file" "$first" "${version%%"$newline"*}"
            } &
        done
    done
    wait
}

# What would be found first is asked for its version. Further interpreters are only listed (their paths say it), and so
# are the many wrappers that a version manager keeps on PATH.
pythons() {
    IFS=:
    set -f
    set -- $path
    set +f
    for dir in "$@" /usr/bin /usr/local/bin; do
        [ -h "$dir" ] && continue # /bin on most systems
        exact=
        for file in "$dir"/python3.[0-9] "$dir"/python3.[0-9][0-9] "$dir"/python3; do
            [ -x "$file" ] && [ -f "$file" ] || continue
            [ -n "$exact" ] && [ "$file" = "$dir"/python3 ] && continue
            case $seen in *":$file:"*) exact=yes && continue ;; esac
            seen=${seen:-:}$file:
            if read -r start <"$file" && [ "${start#\#!}" != "$start" ]; then
                [ "$file" != "$dir"/python3 ] && [ -x "$dir"/python3 ] && continue
            fi
            exact=yes
            printf '%s\t\n' "$file"
            { version=$("$file" -V 2>&1) && printf '%s\t%s\n' "$file" "$version"; } &
        done
    done
    for file in /opt/conda "$HOME"/miniconda3 "$HOME"/miniforge3 "$HOME"/anaconda3 "$HOME"/.local/share/uv/python/* \
        "$HOME"/.pyenv/versions/* /opt/python/*; do
        for file in "$file"/bin/python3.[0-9] "$file"/bin/python3.[0-9][0-9]; do
            [ -x "$file" ] && [ -f "$file" ] && printf '%s\tlisted\n' "$file"
        done
    done
    wait
}

# The flags say what the processor has; only the kernel says whether a process may use tiles
# (arch_prctl 158, ARCH_REQ_XCOMP_PERM 0x1023, XTILEDATA 18: Documentation/arch/x86/xstate.rst). No shell can make that
# call; where neither Perl nor Python is, nobody is asked and nothing is said.
tiles() {
    perl -e 'print syscall(158, 0x1023, 18) == 0 ? "granted" : "refused " . ($! + 0), "\n"' || python3 -c 'import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print("granted" if libc.syscall(158, 0x1023, 18) == 0 else "refused %d" % ctypes.get_errno())'
}

libraries() {
    getconf GNU_LIBC_VERSION || ldd --version 2>&1 | head -n 1
    found=
    for dir in /lib/*-linux-gnu* /usr/lib/*-linux-gnu* /lib64 /usr/lib64 /usr/lib /lib /usr/local/lib /usr/local/lib64; do
        [ -h "$dir" ] && continue
        # libstdc++.so.6.0.30 is the one that knows GLIBCXX_3.4.30
        for file in "$dir"/libstdc++.so.6.0.* "$dir"/libzstd.so.1 "$dir"/libz.so.1 "$dir"/libgomp.so.1 \
            "$dir"/libnuma.so.1 "$dir"/libtcmalloc.so.* "$dir"/libtcmalloc_minimal.so.* "$dir"/libjemalloc.so.* \
            "$dir"/libiomp5.so "$dir"/ld-musl-*; do
            [ -e "$file" ] || continue
            printf '%s\n' "$file"
            found="$found $file"
        done
    done
    for file in "$venv"/lib/libiomp5.so "$venv"/lib/libtcmalloc*.so* "$venv"/lib/libjemalloc.so*; do
        [ -e "$file" ] && printf '%s\n' "$file"
    done
    case $found in *libstdc++*) case $found in *libzstd*) case $found in *libz.so*) return ;; esac ;; esac ;; esac
    ldconfig -p | grep -E 'lib(stdc\+\+|zstd|z|gomp|numa|tcmalloc|tcmalloc_minimal|jemalloc|iomp5)\.so'
}

# Where each path would be created (the nearest directory above it that exists), and the room there.
space() {
    places=
    for wanted in "$@"; do
        [ -n "$wanted" ] || continue
        there=$wanted
        while [ -n "$there" ] && ! cd -P "$there"; do there=${there%/*}; done
        [ -n "$there" ] || cd /
        mode=ro
        [ -w . ] && mode=rw
        printf 'path\t%s\t%s\t%s\n' "$wanted" "$PWD" "$mode"
        places="$places:$PWD"
    done
    IFS=:
    set -f
    df -Pk ${places#:}
}

environment_at() {
    [ -n "$1" ] || return
    printf 'venv\t%s\n' "$1"
    for file in "$1".d/*; do
        case ${file##*/} in lock | bin | cache | tokens | '*') ;; *) printf 'beside\t%s\n' "${file##*/}" ;; esac
    done
    [ -d "$1" ] || return
    [ -x "$1/bin/python" ] && printf 'python\t%s\n' "$1/bin/python"
    for file in "$1"/lib/python3.*/site-packages/*.dist-info; do
        [ -e "$file" ] && printf 'dist\t%s\n' "${file#"$1"/lib/}"
    done
    for file in pyvenv.cfg ipexctl.json; do
        [ -r "$1/$file" ] && printf 'file\t%s\n' "$file" && head -c 65536 "$1/$file" && echo
    done
}

addresses_of_names() {
    read -r self </proc/sys/kernel/hostname
    for name in "$self" $names; do
        { found=$(getent hosts "$name") && printf '%s\t%s\n' "$name" "$found"; } &
    done
    wait
}

probe "$@" 2>/dev/null </dev/null
