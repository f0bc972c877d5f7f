# What a host says about itself. Runs as `sh -s -- NONCE LIMIT CAP VENV WORKDIR [NAME...]`, this text on its standard
# input, under dash, busybox ash or bash; needs nothing but sh, and uses what else is there. It changes nothing.
#
# The answer is framed. What the kernel and the system's own files tell cannot hang, and is asked in turn: a line
# `NONCE begin KIND NAME`, the text, a line `NONCE end`. KIND is
#   file     NAME is a path, the text its content
#   grep     lines `path:line` of many small files; a relative path is relative to NAME
#   command  NAME is the command, or our word for a question
# What starts programs, searches directories or asks a network can hang. All of that runs aside, at the same time, and
# says in single lines
#   NONCE asked NAME         somebody works at this question; as many say `ended`
#   NONCE output NAME<TAB>... a piece of the answer; between its lines stands the seam, the last 8 digits of the nonce
#   NONCE ended STATUS NAME  137: killed at the time limit, 141: cut at CAP bytes; output before it counts
# Such a line is written at once and is shorter than PIPE_BUF: it may stand anywhere, even within a line of a frame, but
# is never in pieces. `NONCE done` is the last line. What else there is (banners, rc files that talk) is not ours.
#
# So nothing is written to disk, answers never mix, and the whole probe takes as long as its slowest question, at most
# LIMIT seconds. Each process costs a host a millisecond or two, most of what all this costs: it starts few.
#
# The function is read to its end before anything runs, so that no command can swallow the rest of this text.

probe() {
    nonce=$1 limit=$2 cap=$3 venv=$4 work=$5
    shift 5
    seam=${nonce#????????????????????????}
    path=$PATH
    newline='
'
    PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
    LC_ALL=C
    IPEXCTL_PROBE=$nonce # how leftovers are told from other people's processes
    export PATH LC_ALL IPEXCTL_PROBE
    unset LANGUAGE
    case $venv in '' | /*) ;; *) venv=$HOME/${venv#"~/"} ;; esac
    case $work in '' | /*) ;; *) work=$HOME/${work#"~/"} ;; esac
    cd / # the home directory may be somebody else's
    cpuinfo

    sleep "$limit" >/dev/null &
    nap=$!
    {
        {
            programs &
            run 'command -v' '' tools
            [ -z "$venv" ] || run venv '' environment_at "$venv"
            run 'df -Pk' '' space "$venv" "$work" "$HOME"
            run 'df -Pk /dev/shm /tmp' '' space /dev/shm /tmp
            run 'ip addr' '' addresses
            run login '' login
            read -r self </proc/sys/kernel/hostname
            for host in "$self" "$@"; do run 'getent hosts' "$host" getent hosts "$host"; done
            say command env environment
            say command date clock
            say command 'ls -l /proc/self/ns' namespaces
            say file /proc/cpuinfo printf '%s\n' "$processor"
            say grep /sys/devices/system/cpu kernel
            say command libraries libraries
            tellable || run lscpu '' lscpu
            case $processor in *" amx_tile"*) run amx '' tiles ;; esac
            calm || heavy
            wait
        } | at_once
        kill "$nap"
    } &
    job=$!
    if wait "$nap"; then # the nap ended by itself: time is up
        round=0
        while kill -0 "$job"; do
            stop_questions
            round=$((round + 1))
            sleep 0.2 || sleep 1
        done
        say command left leftovers
    fi
    wait "$job"
    printf '\n%s done\n' "$nonce"
}

# A question that cannot hang or run wild, and its frame.
say() {
    printf '\n%s begin %s %s\n' "$nonce" "$1" "$2"
    shift 2
    "$@"
    printf '\n%s end\n' "$nonce"
}

# The whole answer in one piece: each write becomes a packet, which a client with hundreds of hosts has to take.
at_once() {
    command -v dd >/dev/null && exec dd ibs=65536 obs=1048576
    exec cat
}

# --- questions that can hang -----------------------------------------------------------------------------------------

# A program or a function, whose output is the answer to question $1, each line after $2 and a tab if $2 is not empty.
# Whoever waits for a dead file system may be unkillable, and holds on to a pipe: to that of his reader, not to ours.
run() {
    asked "$1"
    about=${2:+$2	}
    shift 2
    "$@" 2>&1 </dev/null | answer &
}

# The shell itself reads: to start "head" would cost more.
answer() {
    trap '' TERM
    status=0 size=0
    while IFS= read -r line || [ -n "$line" ]; do
        size=$((size + ${#line} + 1))
        [ "$size" -le "$cap" ] || { status=141 && break; }
        tell "$about$line"
    done
    kill -0 "$nap" || status=137
    ended "$status"
}

asked() {
    name=$1 piece=
    printf '%s asked %s\n' "$nonce" "$name"
}

# A line of the answer to the question asked last. Lines are collected until a piece is full, or `flush`.
tell() {
    [ $((${#piece} + ${#1})) -lt 3000 ] || flush
    piece=$piece$seam$1
}

flush() {
    [ -z "$piece" ] || printf '%s output %s\t%.3500s\n' "$nonce" "$name" "${piece#"$seam"}"
    piece=
}

ended() {
    flush
    printf '%s ended %s %s\n' "$nonce" "${1:-0}" "$name"
}

# Kills all programs: whoever reads their answers then tells what there was, and ends. If that does not help after a
# second: the copies of this shell that are not readers. If that does not help either, somebody cannot be killed, and
# those who wait for him are, wherever they are by now.
stop_questions() {
    family=
    for stat in /proc/[0-9]*/stat; do
        read -r line <"$stat" || continue
        pid=${line%% *} line=${line##*) }
        line=${line#* }
        family="$family $pid:${line%% *}"
    done
    for stage in $(children "$job"); do
        for process in $(descendants "$stage"); do
            if ! is_shell "$process"; then
                kill -9 "$process"
            elif [ "$round" -ge 5 ]; then
                kill -TERM "$process"
            fi
        done
    done
    [ "$round" -ge 7 ] || return
    for entry in $family; do
        case ${entry%:*} in $$ | "$job") continue ;; esac
        is_shell "${entry%:*}" && kill -9 "${entry%:*}"
    done
}

children() {
    for entry in $family; do
        case $entry in *":$1") echo "${entry%%:*}" ;; esac
    done
}

descendants() {
    for descendant in $(children "$1"); do
        echo "$descendant"
        descendants "$descendant"
    done
}

# A copy of this one? The nonce is among its words.
is_shell() {
    words=
    read -r ours <"/proc/$$/cmdline"
    read -r words <"/proc/$1/cmdline"
    [ "$words" = "$ours" ]
}

# What carries our mark and lives on after all (it was born while its parents were killed, or left their session): killed,
# and named if that does not help.
leftovers() {
    for try in 1 2; do
        own=$(grep -ls "^Uid:.$(id -u)[^0-9]" /proc/[0-9]*/status | sed 's/status$/environ/') # as in find_processes.sh
        for environ in $(grep -ls "IPEXCTL_PROBE=$nonce" $own); do
            pid=${environ#/proc/}
            pid=${pid%/environ}
            read -r comm <"/proc/$pid/comm" || continue
            [ "$comm" = grep ] && continue # ours, right now
            if [ "$try" = 1 ]; then kill -9 "$pid"; else echo "$pid $comm"; fi
        done
    done
}

# Where each path would be created (the nearest directory above it that exists), and the room there.
space() {
    dirs=
    for wanted in "$@"; do
        [ -n "$wanted" ] || continue
        near=$wanted
        while [ -n "$near" ] && ! cd -P "$near" 2>/dev/null; do near=${near%"/${near##*/}"}; done
        [ -n "$near" ] || cd /
        mode=ro
        [ -w . ] && mode=rw
        printf 'path\t%s\t%s\t%s\n' "$wanted" "$PWD" "$mode"
        dirs=$dirs:$PWD
        cd /
    done
    IFS=:
    set -f
    df -Pk ${dirs#:} 2>/dev/null
}

environment_at() {
    printf 'venv\t%s\n' "$1"
    check_environment "$1" || printf 'fault\t%s\n' "$fault"
    for file in "$1".d/*; do
        case ${file##*/} in
            lock) grep -qs "FLOCK .*:$(stat -c %i "$file") " /proc/locks && printf 'locked\t\n' ;;
            bin | cache | tokens | '*') ;;
            *) printf 'beside\t%s\n' "${file##*/}" ;;
        esac
    done
    [ -d "$1" ] || return
    [ -x "$1/bin/python" ] && printf 'python\t%s\n' "$1/bin/python"
    for file in "$1"/lib/python3.*/site-packages/*.dist-info; do
        [ -e "$file" ] && printf 'dist\t%s\n' "${file#"$1"/lib/}"
    done
    for file in "$1"/lib/libiomp5.so "$1"/lib/libtcmalloc*.so* "$1"/lib/libjemalloc.so*; do
        [ -e "$file" ] && printf 'library\t%s\n' "$file"
    done
    for file in pyvenv.cfg ipexctl.json; do
        [ -r "$1/$file" ] && printf 'file\t%s\n' "$file" && head -c 65536 "$1/$file" 2>/dev/null && echo
    done
}

tools() {
    for tool in bash python3 tar zstd gzip numactl taskset lscpu setsid systemd-run gcc g++ cc uv git ssh curl \
        srun sbatch sinfo qsub bsub module gdb py-spy perf ethtool; do
        command -v "$tool"
    done
}

# Those that PATH holds are asked for their versions. Which ones they are is told before the first one answers: in the
# order in which they would be found.
programs() {
    asked 'mpirun --version'
    asked 'python -V'
    found=$(pythons && launchers)
    IFS=$newline
    set -f
    for entry in $found; do
        case $entry in python*) tell "${entry#*	}	" ;; listed*) tell "${entry#*	}	listed" ;; esac
    done
    ended 0
    for entry in $found; do
        file=${entry#*	}
        case $entry in
        python*) run 'python -V' "$file" "$file" -V ;;
        mpirun*) run 'mpirun --version' "$file" "$file" --version ;;
        esac
    done
    name='mpirun --version'
    ended 0
    wait
}

# Further interpreters are only listed (their paths say it), and so are the many wrappers that a version manager keeps on
# PATH.
pythons() {
    IFS=:
    set -f
    set -- $path
    set +f
    seen=:
    for dir in "$@" /usr/bin /usr/local/bin; do
        [ -h "$dir" ] && continue # /bin on most systems
        exact=
        for minor in .3 .4 .5 .6 .7 .8 .9 .10 .11 .12 .13 .14 .15 .16 .17 .18 .19 .20 .21 .22 .23 .24 .25 ''; do
            file=$dir/python3$minor # no pattern: see libraries
            [ -x "$file" ] && [ -f "$file" ] || continue
            [ -n "$exact" ] && [ "$file" = "$dir"/python3 ] && continue
            case $seen in *":$file:"*) exact=yes && continue ;; esac
            seen=$seen$file:
            if [ -x "$dir"/python3 ] && ! [ "$file" -ef "$dir"/python3 ]; then
                read -r start <"$file" && [ "${start#\#!}" != "$start" ] && continue
            fi
            exact=yes
            printf 'python\t%s\n' "$file"
        done
    done
    for file in /opt/conda "$HOME"/miniconda3 "$HOME"/miniforge3 "$HOME"/anaconda3 "$HOME"/.local/share/uv/python/* \
        "$HOME"/.pyenv/versions/* /opt/python/*; do
        for file in "$file"/bin/python3.[0-9] "$file"/bin/python3.[0-9][0-9]; do
            [ -x "$file" ] && [ -f "$file" ] && printf 'listed\t%s\n' "$file"
        done
    done
    true
}

# One file by several names (/bin is /usr/bin, mpiexec is mpirun) is asked once: starting one costs more than all the rest.
launchers() {
    IFS=:
    set -f
    dirs=$path
    set --
    for dir in $dirs; do
        for file in "${dir:-.}"/mpirun "${dir:-.}"/mpiexec; do
            [ -x "$file" ] && [ -f "$file" ] || continue
            for known in "$@"; do [ "$file" -ef "$known" ] && continue 2; done
            set -- "$@" "$file"
            printf 'mpirun\t%s\n' "$file"
        done
    done
}

# The flags say what the processor has; only the kernel says whether a process may use tiles
# (arch_prctl 158, ARCH_REQ_XCOMP_PERM 0x1023, XTILEDATA 18: Documentation/arch/x86/xstate.rst). No shell can make that
# call; where neither Perl nor Python is, nobody is asked and nothing is said.
tiles() {
    exec 2>/dev/null
    perl -e 'print syscall(158, 0x1023, 18) == 0 ? "granted" : "refused " . ($! + 0), "\n"' || python3 -c 'import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print("granted" if libc.syscall(158, 0x1023, 18) == 0 else "refused %d" % ctypes.get_errno())'
}

# Two traps of this login. `open`: directories in which anybody may put a program (in PATH), or replace what is below
# (above the environment or the working directory; the sticky bit forbids that there). `ignored`: variables and files of pip
# and uv, which an install here does not read: names alone, for a value may hold a password.
login() {
    IFS=$newline
    set -f
    for line in $(export -p); do
        line=${line#export }
        line=${line#declare -x } # of bash
        case $line in PIP_*=* | UV_*=*) printf 'ignored\t%s\n' "${line%%=*}" ;; esac
    done
    own=${XDG_CONFIG_HOME:-$HOME/.config}
    for file in /etc/pip.conf /etc/xdg/pip/pip.conf "$HOME/.pip/pip.conf" "$own/pip/pip.conf" \
        /etc/uv/uv.toml /etc/xdg/uv/uv.toml "$own/uv/uv.toml"; do
        [ -s "$file" ] && printf 'ignored\t%s\n' "$file"
    done
    IFS=:
    set --
    for dir in $path; do case $dir in /*) set -- "$@" "${dir%/}/." ;; esac; done
    for dir in "$venv" "$work"; do
        while [ -n "$dir" ]; do
            set -- "$@" "$dir"
            dir=${dir%/*}
        done
    done
    find -L "$@" -prune -type d -perm -0002 \( -path '*/.' -o ! -perm -1000 \) 2>/dev/null |
        while IFS= read -r dir; do printf 'open\t%s\n' "${dir%/.}"; done
}

addresses() { ip addr show 2>/dev/null || ifconfig -a 2>/dev/null || cat /proc/net/fib_trie; }

# Who else works here is worth asking only where the load says that somebody does.
calm() {
    read -r load rest </proc/loadavg
    [ "${load%%.*}" -eq 0 ]
}

# Those that have used half a CPU or more over their life, and ten seconds at least: what idles is nobody's business, and
# there may be thousands. "ps" alone would read three files of each.
heavy() {
    read -r uptime rest </proc/uptime
    used='^[0-9]+ \(.*\) [A-Za-z]( -?[0-9]+){10} ([0-9]{4,} [0-9]+|[0-9]+ [0-9]{4,}) ' # ticks: 100 a second
    found=$(grep -hsE "$used" /proc/[0-9]*/stat | while read -r line; do
        pid=${line%% *}
        set -- ${line##*) }
        shift 11 # utime, stime, and starttime as the ninth
        [ $(($1 + $2)) -ge $((50 * ${uptime%%.*} - $9 / 2)) ] && printf '%s,' "$pid"
    done)
    [ -z "$found" ] || run ps '' ps -o pcpu=,etime=,user=,pid=,comm= -p "${found%,}"
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
        cpu[0-9]*/cpu_capacity cpu[0-9]*/regs/identification/midr_el1 /proc/sys/abi/sve_default_vector_length \
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
    processor=
    if [ -r /sys/devices/system/cpu/cpu0/topology/thread_siblings_list ]; then
        while IFS= read -r line && [ -n "$line" ]; do processor=$processor$line$newline; done </proc/cpuinfo
    else
        processor=$(sed -e '1,/^$/b' -e '/^flags/d' -e '/^bugs/d' -e '/^vmx/d' -e '/^power/d' /proc/cpuinfo)
    fi
}

# Do the kernel's files say enough? On 256 CPUs lscpu costs more time than all the rest.
tellable() {
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
        /etc/lsf.conf /proc/vz /dev/nvidia[0-9]* /dev/kfd /dev/accel/* /dev/davinci[0-9]* /dev/dri/renderD* "$HOME"/ipexctl/hub/*/refs/main; do
        [ -e "$mark" ] && printf 'there=%s\n' "$mark"
    done
}

clock() { date +%s.%N; }

# Equal only where two entries of a host file are one and the same machine: the boot id alone is equal in all containers.
namespaces() { ls -ln /proc/self/ns; } # numbers: to look up names of users costs more than the rest

# Names with patterns in them make the shell read whole directories, and these have thousands of entries: once each.
libraries() {
    getconf GNU_LIBC_VERSION || ldd --version 2>&1 | head -n 1
    found=
    for dir in /lib/*-linux-gnu* /usr/lib/*-linux-gnu* /lib64 /usr/lib64 /usr/lib /lib /usr/local/lib /usr/local/lib64; do
        [ -h "$dir" ] && continue
        case $dir in /lib/*) [ -h /lib ] && continue ;; esac
        for file in "$dir"/lib[jst][ect][cdm]* "$dir"/libzstd.so.1 "$dir"/libz.so.1 "$dir"/libgomp.so.1 \
            "$dir"/libnuma.so.1 "$dir"/libiomp5.so "$dir"/ld-musl-x86_64.so.1; do
            # libstdc++.so.6.0.30 is the one that knows GLIBCXX_3.4.30
            case ${file##*/} in
            libtcmalloc.so.* | libtcmalloc_minimal.so.* | libjemalloc.so.* | libstdc++.so.6.0.*) ;;
            lib[zgni]* | ld-*) ;;
            *) continue ;;
            esac
            [ -e "$file" ] || continue
            printf '%s\n' "$file"
            found="$found $file"
        done
    done
    case $found in *libstdc++*) case $found in *libzstd*) case $found in *libz.so*) return ;; esac ;; esac ;; esac
    ldconfig -p | grep -E 'lib(stdc\+\+|zstd|z|gomp|numa|tcmalloc|tcmalloc_minimal|jemalloc|iomp5)\.so'
}

probe "$@" 2>/dev/null </dev/null
