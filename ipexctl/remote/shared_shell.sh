# One shell for many short commands, one after another: the login and its startup files cost once. On the input each comes
# as a line `SIZE INPUT NONCE`, SIZE bytes of sh, and INPUT bytes for its own standard input. Behind the command each output
# has a line that begins with the nonce, the first one with the status. POSIX sh; ends with its input, and after `limit`
# seconds without a command: sshd may learn hours later that its client was cut off.
#
# Of a text that did not arrive whole nothing is executed: it is a group in braces. A command gets its input once all of it
# is here, and may run before. dd with `fullblock` takes exactly these bytes; head is for a dd that does not know the word,
# and has read nothing.
exactly() { dd bs="$1" count=1 iflag=fullblock; }
exec 3>&2 2>/dev/null # this shell's own words, as on a command that was killed, are nobody's output
take=exactly
limit=600
await() { read -r -t "$limit" size input nonce; }
if ! echo | (await); then # dash: its read has no limit
  await() {
    line=$(timeout "$limit" sh -c 'read -r line && echo "$line"' 3>&-) || { [ $? = 127 ] && read -r line; } || return 1
    size=${line%% *} input=${line#* } nonce=${line##* }
    input=${input%% *}
  }
fi
while await; do
  text=$($take "$size") || { take='head -c' && text=$($take "$size"); } ||
    { echo "neither dd nor head is in PATH: $PATH" >&3 && exit 127; }
  case $input in
  0) (eval "$text") 2>&3 3>&- </dev/null ;;
  *) $take "$input" | (eval "$text") 2>&3 3>&- ;;
  esac
  printf '\n%s %s\n' "$nonce" "$?"
  printf '\n%s\n' "$nonce" >&3
done
exit 255 # of a command that came too late
