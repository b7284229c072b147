"""Text projections of a window or a thread: each has a value, `project`, `render` and `parse`.

parse(render(value)) == value and render(parse(text)) == text, whatever the content holds.
"""
