"""The page of a report; every value is escaped by the renderer."""

from __future__ import annotations

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ heading }}</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
         max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
  .verdict { border-left: 4px solid #0072B2; background: #f2f7fb; padding: .6rem 1rem; }
  .warning { border-left: 4px solid #E69F00; background: #fdf6e7; padding: .6rem 1rem; }
  .wrong { border-left: 4px solid #D55E00; background: #fdf0ea; padding: .6rem 1rem; }
  .verdict p, .warning p, .wrong p { margin: .3rem 0; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
  caption { text-align: left; font-weight: 600; padding: .4rem 0; }
  th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid #e5e5e5;
           white-space: nowrap; }
  th.left, td.left { text-align: left; }
  tr.faster td { color: #00664b; } tr.slower td { color: #a34600; } tr.baseline td { color: #666; }
  figure { margin: 1.5rem 0; break-inside: avoid; } img { max-width: 100%; height: auto; }
  .file { font-family: ui-monospace, monospace; font-size: .8rem; }
  .note, figcaption { color: #555; font-size: .9rem; }
  pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .85rem; }
  p, h1, figcaption, .file { overflow-wrap: anywhere; }
  /* On a phone a figure keeps its size, and is moved sideways in its own place. */
  @media (max-width: 40rem) { body { margin: 1rem auto; } figure img { max-width: none; width: 46rem; } }
  @media print { body { max-width: none; margin: 0; } pre { white-space: pre-wrap; } .wide { overflow: visible; } }
</style>
</head>
<body>
<h1>{{ heading }}</h1>
<div class="verdict">
{%- for sentence in verdicts %}<p>{{ sentence }}</p>{% endfor %}
</div>
{%- if warnings %}
<h2>Warnings</h2>
<div class="warning">
{%- for sentence in warnings %}<p>{{ sentence }}</p>{% endfor %}
</div>
{%- endif %}
{%- for title, lines in wrong if lines %}
<h2>{{ title }}</h2>
<div class="wrong">
{%- for line in lines %}<p>{{ line }}</p>{% endfor %}
</div>
{%- endfor %}
{%- for section in sections %}
<h2>{{ section.title }}</h2>
{%- for table in section.tables %}
<div class="wide"><table>
<caption>{{ table.title }}</caption>
<thead><tr>{% for heading in table.headings %}<th{% if heading in left %} class="left"{% endif %}>{{ heading }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for kind, line in table.lines %}
<tr class="{{ kind }}">{% for text in line %}<td{% if table.headings[loop.index0] in left %} class="left"{% endif %}>{{ text }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody>
</table></div>
{%- endfor %}
<p class="note">{{ section.legend }}</p>
{%- endfor %}
<h2>How far the numbers can be trusted</h2>
{%- for sentence in trust %}
<p>{{ sentence }}</p>
{%- endfor %}
{%- if figures %}
<h2>Figures</h2>
{%- for figure in figures %}
<figure><div class="wide"><img alt="{{ figure.caption or figure.name }}" src="{{ figure.address }}"></div>
<figcaption>{{ figure.caption }} <span class="file">plots/{{ figure.name }}: .png, .svg, .csv</span></figcaption></figure>
{%- endfor %}
{%- endif %}
<h2>Configuration</h2>
<pre>{{ config }}</pre>
<h2>Provenance</h2>
<pre>{{ provenance }}</pre>
</body>
</html>
"""
