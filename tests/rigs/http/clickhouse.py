"""The engine of ClickHouse behind the part of its HTTP interface that inserts need.

The engine is `chdb` of PyPI, so parsing, types, errors and deduplication are ClickHouse's own. What is written here:
`query` and settings of the URL, credentials, gzip, and which status an error has. Runs with the Python of chdb.
"""
import base64
import re
import sys
import threading
import urllib.request

from front import Answer, run, settings

# Of the URL, what is no setting.
NO_SETTINGS = {"query", "database", "default_format", "user", "password", "quota_key", "role", "query_id", "stacktrace",
               "session_id", "session_timeout", "session_check", "close_session", "client_protocol_version", "compress",
               "decompress", "buffer_size", "wait_end_of_query"}
INSERT = re.compile(r"^\s*(INSERT\s+INTO\s+.*?)\s+FORMAT\s+(\w+)\s*;?\s*$", re.I | re.S)
# How a message of the engine begins and ends.
CODE, NAME = re.compile(r"Code: (\d+)\."), re.compile(r"\(([A-Z_0-9]+)\)\s*(?:\(version .*\))?\s*$")
# By the names of errors; all others are 500. As src/Server/HTTP/exceptionCodeToHTTPStatus.cpp has them.
STATUS = {
    400: """BAD_ARGUMENTS CANNOT_COMPILE_REGEXP CANNOT_PARSE_TEXT CANNOT_PARSE_ESCAPE_SEQUENCE CANNOT_PARSE_DATE
        CANNOT_PARSE_QUOTED_STRING CANNOT_PARSE_DATETIME CANNOT_PARSE_NUMBER CANNOT_PARSE_DOMAIN_VALUE_FROM_STRING
        CANNOT_PARSE_IPV4 CANNOT_PARSE_IPV6 CANNOT_PARSE_INPUT_ASSERTION_FAILED CANNOT_PARSE_UUID DUPLICATE_COLUMN
        ILLEGAL_COLUMN UNKNOWN_ELEMENT_IN_AST UNKNOWN_TYPE_OF_AST_NODE THERE_IS_NO_COLUMN TOO_DEEP_AST TOO_BIG_AST
        UNEXPECTED_AST_STRUCTURE SYNTAX_ERROR INCORRECT_DATA TYPE_MISMATCH VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE""",
    403: "UNKNOWN_USER WRONG_PASSWORD AUTHENTICATION_FAILED SET_NON_GRANTED_ROLE ACCESS_DENIED",
    404: """UNKNOWN_TABLE UNKNOWN_FUNCTION UNKNOWN_IDENTIFIER UNKNOWN_TYPE UNKNOWN_STORAGE UNKNOWN_DATABASE
        UNKNOWN_SETTING UNKNOWN_DIRECTION_OF_SORTING UNKNOWN_AGGREGATE_FUNCTION UNKNOWN_FORMAT UNKNOWN_DATABASE_ENGINE
        UNKNOWN_TYPE_OF_QUERY UNKNOWN_ROLE""",
    401: "REQUIRED_PASSWORD", 408: "TIMEOUT_EXCEEDED", 413: "QUERY_IS_TOO_LARGE", 501: "NOT_IMPLEMENTED",
    503: "SOCKET_TIMEOUT CANNOT_OPEN_FILE CANNOT_SCHEDULE_TASK",
}
STATUS_OF = {name: status for status, names in STATUS.items() for name in names.split()}


def error(text):
    """The answer to a request that failed with these words."""
    code, name = ((pattern.search(text) or [None, "0"])[1] for pattern in (CODE, NAME))
    return Answer(STATUS_OF.get(name, 500), f"{text}\n".encode(), {"X-ClickHouse-Exception-Code": code})


def credentials(request):
    """Name and password, from whichever place a client may write them to."""
    basic = request.headers.get("Authorization", "")
    if basic.startswith("Basic "):
        name, _, password = base64.b64decode(basic[6:]).decode().partition(":")
        return name, password
    return (request.headers.get("X-ClickHouse-User") or request.query.get("user", "default"),
            request.headers.get("X-ClickHouse-Key") or request.query.get("password", ""))


def quoted(text):
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def statement(request):
    """The text for the engine: settings of the URL stand within the statement, and its data behind it."""
    text, body = request.query.get("query", ""), request.body.decode()
    insert = INSERT.match(text)
    if insert is None:
        return f"{text}\n{body}" if text else body
    names = [name for name in request.query if name not in NO_SETTINGS]
    given = ", ".join(f"{name} = {quoted(request.query[name])}" for name in names)
    return f"{insert[1]}{' SETTINGS ' + given if given else ''} FORMAT {insert[2]}\n{body}"


def application(folder):
    from chdb import session  # pylint: disable=import-outside-toplevel,import-error
    engine, lock = session.Session(f"{folder}/data"), threading.Lock()
    wanted = tuple(settings(folder).get("credentials", ()))

    def take(request):
        if request.path == "/ping":
            return Answer(200, b"Ok.\n")
        if wanted and credentials(request) != wanted:
            return error("Code: 516. DB::Exception: udpd: Authentication failed: password is incorrect, or there is "
                         "no user with such name. (AUTHENTICATION_FAILED)")
        try:
            with lock:
                found = engine.query(statement(request), "TabSeparated")
        except UnicodeDecodeError as bad:
            return error(f"Code: 117. DB::Exception: this front takes UTF-8 only: {bad}. (INCORRECT_DATA)")
        except Exception as failed:  # pylint: disable=broad-except
            return error(str(failed))
        return Answer(200, found.bytes() or b"")

    return take


def ask(port, text, password):
    """What it answers to a query, as bytes."""
    headers = {"X-ClickHouse-User": "udpd", "X-ClickHouse-Key": password}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", text.encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read()


if __name__ == "__main__":
    sys.exit(run(application))
