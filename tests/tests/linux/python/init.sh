/usr/bin/python3.* -S /loom.py &
read -r word
: >/stop
wait $!
poweroff -f
