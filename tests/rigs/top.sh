#!/usr/bin/env bash
# `udpd top` in a real terminal (tmux): without a daemon, with one, through resizing, zooming, freezing, Ctrl-Z and fg,
# a restart of the daemon, and the three ways to end it. Each picture is read off the screen and must be whole; each end
# must leave the terminal as it was.
. "$(dirname "$0")/lib/rig.sh"
need tmux python3
begin
# A server of its own, whatever tmux this runs in: its end would be the end of all others.
unset TMUX
tmux() { command tmux -S "$WORK/tmux" "$@"; }
port=$(python3 -c 'from lib.load import free_port; print(free_port())')
daemon=
sender=
at_end 'kill -KILL $sender $daemon'
at_end tmux kill-server

screen() { tmux capture-pane -p -t top; }
show_evidence() { screen; }

# Waits until the screen has a line that fits, and until it has none.
shows() { screen | grep -Eq -- "$1"; }
shows_no() { ! shows "$1"; }
see() { wait_for shows "$1" || fail "the screen never had: $1"; }
gone() { wait_for shows_no "$1" || fail "the screen still has: $1"; }
# Waits until the first row is the title and the last one the footer: one line too many would push the title out.
is_whole() {
    shown=$(screen)
    grep -q '^udpd ' <<<"${shown%%$'\n'*}" && grep -q 'q quit' <<<"${shown##*$'\n'}"
}
whole() { wait_for is_whole || fail "the picture does not fill its $height rows"; }
press() { tmux send-keys -t top "$@"; }

cat >"$WORK/udpd.toml" <<TOML
[daemon]
control_socket = "$WORK/control.sock"
metrics_address = ""
[[listener]]
name = "syslog"
address = "127.0.0.1:$port"
lanes = 2
receive_buffer = "64KiB"
sinks = ["nothing"]
[sink.nothing]
type = "null"
TOML
start_daemon() {
    "$UDPD" run -c "$WORK/udpd.toml" 2>"$WORK/daemon.log" &
    daemon=$!
}
stop_daemon() {
    kill -TERM "$daemon"
    wait "$daemon" || true
    daemon=
}

# Without LANG tmux takes the curves for boxes.
tmux -u -f /dev/null new-session -d -s top -x 80 -y 24 "exec bash --norc --noprofile"
press "PS1='READY> '; clear" Enter
see '^READY>'
press "$UDPD top --interval 200ms --socket $WORK/control.sock" Enter
see 'NO ANSWER for'
see 'there is no such file'

start_daemon
gone 'NO ANSWER'
see "^syslog  127.0.0.1:$port"
see 'CHANNEL +LOST/S +SINK'
"$UDPD" bench send --to 127.0.0.1:$port --rate 2000 --seconds 600 --flows 8 >"$WORK/send.log" 2>&1 &
sender=$!
see '^received +[12]\.[0-9]+k/s'
see '^ +\? +[0-9?]+ +[0-9]+% +0 +1 '
[ "$(screen | LC_ALL=C.UTF-8 wc -L)" -le 80 ] || fail "a line is wider than the terminal"

for size in "200 50" "40 10" "20 5" "80 24"; do
    read -r width height <<<"$size"
    tmux resize-window -t top -x "$width" -y "$height"
    whole
done
tmux resize-window -t top -x 80 -y 24

press '?'
see 'Left to right is the way of a datagram'
press Escape
gone 'Left to right'
press Down Enter
see '^lane 1 of syslog'
see 'busiest senders of late'
see '127.0.0.1 '
press BTab
see '^lane 0 of syslog'
# Longer than the screen: every line of it can be reached.
tmux resize-window -t top -x 80 -y 8
see '^lines 1-6 of '
press Down
see '^lines 2-7 of '
press NPage
see '^lines 7-12 of '
press End
see '^lines [0-9]+-([0-9]+) of \1 '
see '^127.0.0.1 '
press Home
see '^lines 1-6 of '
tmux resize-window -t top -x 80 -y 24
whole
press Escape
see 'CHANNEL +LOST/S +SINK'
press s
see 'sorted by lane'
press Space
see 'FROZEN'
# The clock in the title may go on; the numbers may not.
frozen() { screen | grep -E '^ +(\?|[0-9]+) |^received|^nothing|^ *syslog'; }
first=$(frozen)
[ -n "$first" ] || fail "no numbers to compare"
sleep 1
[ "$first" = "$(frozen)" ] || fail "a frozen picture moved"
press p
gone 'FROZEN'

stop_daemon
see 'NO ANSWER'
see 'The numbers below are the last ones'
start_daemon
see 'The daemon was restarted'
see '^received +[12]\.[0-9]+k/s'
screen | grep -Eq -- '-[0-9]' && fail "a negative number after the restart"

press C-z
see 'Stopped'
stty_of() { press "stty -a | tr ';' '\\n' | grep -E 'icanon|susp'; echo DO\"\"NE" Enter; }
stty_of
see '^DONE'
screen | grep -Eq '[^-]icanon' || fail "the terminal reads keys one by one after Ctrl-Z"
press "clear; fg" Enter
see '^received +[0-9.]+k?/s'

# Each end gives the terminal back: the shell's screen, its cursor and its keys.
ended() {
    see '^READY> *$'
    gone 'CHANNEL +LOST/S'
    press "clear; stty -a | tr ';' '\\n' | grep -E 'icanon'; echo STA\"\"TE" Enter
    see '^STATE'
    screen | grep -Eq '(^|[^-])icanon' || fail "the terminal is not as it was after $1"
    [ "$(tmux display-message -p -t top '#{cursor_flag} #{alternate_on}')" = "1 0" ] ||
        fail "no cursor, or the wrong screen, after $1"
}
again() {
    press "clear; $UDPD top --socket $WORK/control.sock" Enter
    see 'CHANNEL +LOST/S +SINK'
}
press q
ended q
again
press C-c
ended Ctrl-C
for signal in TERM HUP QUIT; do
    again
    kill -"$signal" "$(pgrep -P "$(tmux display-message -p -t top '#{pane_pid}')")"
    ended "SIG$signal"
done

# Where text cannot be placed: reports, one after the other.
press "clear; TERM=dumb $UDPD top --interval 200ms --socket $WORK/control.sock | head -n 12; echo OV\"\"ER" Enter
see '^OVER'
screen | grep -q 'CHANNEL' || fail "no plain report in a dumb terminal"
press "clear; $UDPD top --once --socket $WORK/control.sock > $WORK/once; echo WRIT\"\"TEN" Enter
see '^WRITTEN'
grep -q 'nothing' "$WORK/once" || fail "no report in a file"
if grep -q $'\x1b' "$WORK/once"; then fail "a terminal's code in a file"; fi
press "clear; NO_COLOR=1 $UDPD top --socket $WORK/control.sock" Enter
see 'CHANNEL +LOST/S +SINK'
tmux capture-pane -e -p -t top | grep -Eq $'\x1b\\[[0-9;]*3[0-8]m' && fail "a colour with NO_COLOR"
press q
ended "NO_COLOR"
echo "ok: top in a terminal through no daemon, resizing, restart, Ctrl-Z, q, Ctrl-C, SIGTERM, SIGHUP and SIGQUIT"
