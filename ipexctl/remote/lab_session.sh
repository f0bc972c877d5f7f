# Every session of a lab host starts here: sshd starts it in the user's home, not in the lab host's.
cd "$HOME" || exit 255
if [ -z "${SSH_ORIGINAL_COMMAND+set}" ]; then
    exec "$SHELL" -l
fi
command=$SSH_ORIGINAL_COMMAND
unset SSH_ORIGINAL_COMMAND
exec "$SHELL" -c "$command"
