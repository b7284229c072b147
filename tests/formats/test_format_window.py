"""xml and json of a window: nothing is lost, and an XML reader sees the content itself."""

import base64
import json
from xml.etree import ElementTree

from format_values import windows
from hypothesis import given

from quire import Window
from quire.formats import json_, xml


@given(windows)
def test_any_xml_reader_finds_the_contents(data: dict) -> None:
    value = xml.read(data)
    root = ElementTree.fromstring(xml.render(value))
    found = [_text(element) for element in root.findall("item")]
    assert found == [item.content for item in value.items]
    assert [element.get("id") for element in root.findall("item")] == [item.id for item in value.items]


def _text(element: ElementTree.Element) -> str:
    text = element.text or ""
    return base64.b64decode(text).decode() if element.get("encoding") == "base64" else text


def test_the_bytes_of_xml() -> None:
    data = {
        "items": [
            {"content": "a < b && c\r\n]]>", "metadata": {"filename": 'a "b".py', "start_line": 0, "end_line": 2}},
            {"type": "error", "content": "\x00é", "metadata": {"level": [1, "\x00"]}, "timestamp": 5},
            {"type": "text", "content": "", "metadata": {}},
        ],
        "request": "Why?",
    }
    assert xml.render(xml.read(data)) == (
        "<context>\n"
        '<item id="ctx-1" type="code" filename="a &quot;b&quot;.py" start_line="0" end_line="2">'
        "a &lt; b &amp;&amp; c&#13;\n]]&gt;</item>\n"
        '<item id="ctx-2" type="error" metadata="{&quot;level&quot;:[1,&quot;\\u0000&quot;]}" timestamp="5" '
        'encoding="base64">AMOp</item>\n'
        '<item id="ctx-3" type="text" metadata="{}" timestamp="5"></item>\n'
        "<request>Why?</request>\n"
        "</context>\n"
    )
    assert xml.render(xml.read({"items": []})) == "<context>\n</context>\n"
    assert xml.render(xml.read({"items": [], "max_items": 3})) == '<context max_items="3">\n</context>\n'


def test_json_is_the_window_s_own_object() -> None:
    window = Window(7, clock=lambda: 3)
    window.add("x", "file", {"filename": "a.md"})
    window.add("y")
    window.pin("ctx-1")
    value = json_.project(window, "Why?")
    assert json.loads(json_.render(value)) == {**window.to_json(), "request": "Why?"}
    assert xml.parse(xml.render(value)) == value
