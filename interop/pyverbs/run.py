"""Runs the pyverbs tests and prints a line for each: the result, the name, and the reason.

usage: run.py FOLDER [--without PREFIX]... OPTION... [TEST]...

`install` creates FOLDER. Tests whose names start with a PREFIX are not run. The options are those of pyverbs' own
run_tests.py (--dev, --gid, ...). TESTs are the names of the tests to run; the default is all.
"""

import faulthandler
import os
import sys
import unittest

# Dumps the stack of a hanging test before the caller's own timeout expires.
LIMIT = 60


class Lines(unittest.TestResult):
    """Prints each result as soon as it is available."""

    def say(self, what, test, why=""):
        faulthandler.cancel_dump_traceback_later()
        lines = why.strip().splitlines()
        print(what, test.id(), lines[-1] if lines else "", sep="\t", flush=True)
        if what in ("fail", "error"):
            print(why, file=sys.stderr, flush=True)

    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        print("run", test.id(), "", sep="\t", flush=True)

    def addSuccess(self, test):
        self.say("ok", test)

    def addSkip(self, test, reason):
        self.say("skip", test, reason)

    def addFailure(self, test, err):
        self.say("fail", test, self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.say("error", test, self._exc_info_to_string(err, test))

    def addExpectedFailure(self, test, err):
        self.say("ok", test)

    def addUnexpectedSuccess(self, test):
        self.say("fail", test, "unexpected success")


def chosen(suite, without):
    """The tests of a suite, except those whose names start with one of the prefixes."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from chosen(test, without)
        elif not test.id().startswith(tuple(without)):
            yield test


def main():
    folder = sys.argv.pop(1)
    without = []
    while sys.argv[1:2] == ["--without"]:
        without.append(sys.argv.pop(2))
        sys.argv.pop(1)
    sys.path.insert(0, os.path.join(folder, "package/usr/lib/python3/dist-packages"))
    sys.path.insert(0, os.path.join(folder, "tests"))
    sys.path.insert(0, folder)
    # The option parser of pyverbs is a module next to the tests; their package has another module for the same parser.
    from args_parser import parser

    parser.parse_args()
    # The remaining arguments are the names of the tests to run; no names means all tests.
    names = sys.argv[1:]
    import tests

    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names) if names else loader.loadTestsFromModule(tests)
    result = Lines()
    unittest.TestSuite(chosen(suite, without)).run(result)
    print("done", result.testsRun, "", sep="\t", flush=True)


main()
