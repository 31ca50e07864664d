# Runs in the guest what the host asks for over the second serial line: a line is a script, the answer is its exit code
# and what it said. Both travel as base64, so nothing in them can be taken for something else.
stty -F /dev/ttyS1 -echo raw
exec 3<>/dev/ttyS1
echo READY >&3
while read -r line <&3; do
    echo "$line" | base64 -d >/tmp/.script
    sh /tmp/.script </dev/null >/tmp/.said 2>&1 3>&-
    echo "EXIT $?" >&3
    base64 /tmp/.said >&3
    echo . >&3
done
