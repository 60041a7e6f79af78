"""Runs the tests of pyverbs and prints a line for each: what came of it, its name, and why.

usage: run.py FOLDER [--without PREFIX]... OPTION... [TEST]...

FOLDER is as `install` makes it; tests whose names begin with a PREFIX are not run. The options are those of pyverbs' own
run_tests.py (--dev, --gid, ...); TESTs are the names of those to run, by default all.
"""

import faulthandler
import os
import sys
import unittest

# A test that hangs is named, with where it hangs, before whoever started this gives up.
LIMIT = 60


class Lines(unittest.TestResult):
    """Prints results as they come."""

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
    """The tests of a suite, but for those whose names begin with one of these."""
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
    # Their parser for options is a module beside the tests, and another one, of the same parser, in their package.
    from args_parser import parser

    parser.parse_args()
    # Names of tests that are left on the command line are those to run; none means all.
    names = sys.argv[1:]
    import tests

    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names) if names else loader.loadTestsFromModule(tests)
    result = Lines()
    unittest.TestSuite(chosen(suite, without)).run(result)
    print("done", result.testsRun, "", sep="\t", flush=True)


main()
