# Prints NONE where nothing of a run lives on this host for sure: no process that was started with MARK (NAME=VALUE) in its
# environment, and no control group whose name begins with GROUP. Else nothing: `agent.procs` knows which, in ten times
# the time. POSIX sh; run as: sh -c TEXT NAME MARK GROUP NONE
# Not every grep knows these options: its standard input has the mark, so one that can do it finds it there, and only there.
# Root would read what other users have there, too: marks of ours, and variables without an end.
own=/proc/[0-9]*/environ
if [ -O / ]; then
    own=$(LC_ALL=C grep -ls "^Uid:.$(id -u)[^0-9]" /proc/[0-9]*/status | sed 's/status$/environ/')
    case $own in *"/proc/$$/environ"*) ;; *) exit 0 ;; esac
fi
holders=$(printf 'a\0%s\0b\0' "$1" | LC_ALL=C grep -lszxF -e "$1" - $own 2>/dev/null)
[ $? -le 2 ] && [ "$holders" = '(standard input)' ] || exit 0 # 2: of others, or gone; more: there are too many to name them
groups=$(find /sys/fs/cgroup -type d -name "$2*" 2>/dev/null)
[ $? -le 1 ] && [ -z "$groups" ] && printf '%s\n' "$3" # 1: a group is gone meanwhile; more: there is no find
exit 0
