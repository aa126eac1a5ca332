# Programs with two functions whose shares they count; one that may be loaded anywhere.
fixed >/run/fixed & fixed=$!
pie >/run/pie & pie=$!
# Until they are told, they execute a program, or end.
( while [ ! -e /run/execute ]; do :; done; exec after >/run/after ) & after=$!
( while [ ! -e /run/leave ]; do :; done ) & leaving=$!
echo "pid fixed $fixed"
echo "pid pie $pie"
echo "pid after $after"
echo "pid leaving $leaving"
echo workload running
while read -r word; do
    case $word in
    finish)
        kill $fixed $pie $after
        wait $fixed $pie $after
        sed 's/^/fixed /' /run/fixed
        sed 's/^/pie /' /run/pie
        # From now on nobody else runs.
        ( while [ ! -e /run/halt ]; do :; done ) & echo "pid last $!"
        echo finished
        ;;
    over) poweroff -f ;;
    *) : >"/run/$word" ;;
    esac
done
