"""Five functions of known shares, which are called through C and in two threads. Each measures its own time, from when the guest is told to begin."""

import os
import threading
import time

spent = {}
begun = set()


def account(name, begin):
    spent[name] = spent.get(name, 0) + time.thread_time_ns() - begin


def card(number):
    begin = time.thread_time_ns()
    for step in range(30000):
        number += step * step
    account("card", begin)
    return number


def comb(number):
    begin = time.thread_time_ns()
    for step in range(25000):
        number += step * step
    account("comb", begin)
    return number


def weave():
    begin = time.thread_time_ns()
    number = 0
    for step in range(20000):
        number += step * step
    account("weave", begin)
    yield number


class Dyer:
    def dye(self, number):
        begin = time.thread_time_ns()
        for step in range(15000):
            number += step * step
        account("Dyer.dye", begin)
        return number


def press(number):
    begin = time.thread_time_ns()
    for step in range(10000):
        number += step * step
    account("press", begin)
    return number


def sort_threads(number):
    return sorted([number], key=card)


def goes_on(functions):
    if functions not in begun and os.path.exists("/begin"):
        begun.add(functions)
        for name in functions:
            spent.pop(name, None)
        os.write(1, b"begun\n")
    return not os.path.exists("/stop")


def first_room():
    while goes_on(("card", "weave")):
        list(map(sort_threads, [1]))
        sum(weave())


def second_room():
    while goes_on(("comb", "Dyer.dye", "press")):
        max([1], key=comb)
        list(filter(Dyer().dye, map(press, [1])))


thread = threading.Thread(target=second_room)
thread.start()
print("workload running", flush=True)
first_room()
thread.join()
for name, time_ns in spent.items():
    print("spent", name, time_ns)
print("spent all", flush=True)
