"""Five functions of known shares, which are called through C and in two threads. Each measures its own time."""

import os
import threading
import time

spent = {}


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


def first_room():
    while not os.path.exists("/stop"):
        list(map(sort_threads, [1]))
        sum(weave())


def second_room():
    while not os.path.exists("/stop"):
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
