"""The look of the HTML page: light and dark by the reader's preference, one column on narrow screens, readable on paper."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--bg:#faf9f6;--card:#fff;--ink:#1d2329;--soft:#59636e;--line:#e3dfd6;--accent:#0b6e66;
--other:#b0570a;--track:#efece5;--mark:#ffe48a;--mark-ink:#2b2100;--code:#f3f1ec}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1b2024;--ink:#e5e8ea;--soft:#9ba6b0;--line:#2d343a;
--accent:#4cc9bd;--other:#eba35c;--track:#262c31;--mark:#5c4a06;--mark-ink:#fff0b5;--code:#23292e}}
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}
main,header,nav,footer{max-width:70rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.5rem}
.over{margin:0;color:var(--accent);font-weight:650;letter-spacing:.04em}
h1{font-size:clamp(1.35rem,1rem + 1.6vw,2rem);line-height:1.25;margin:.4rem 0 .6rem;text-wrap:balance;letter-spacing:-.01em}
h2{font-size:1.3rem;line-height:1.3;margin:0 0 .35rem}
h3{font-size:1rem;margin:0}
p{margin:.35rem 0 .9rem}
.soft,.lead{color:var(--soft)}
.lead{overflow-wrap:anywhere}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.875em}
code{background:var(--code);border-radius:.25rem;padding:.1em .35em;overflow-wrap:anywhere}
pre{background:var(--code);border:1px solid var(--line);border-radius:.5rem;padding:.8rem 1rem;margin:.5rem 0 0;overflow-x:auto}
a{color:var(--accent)}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:.2rem}
nav{margin-top:1.4rem}
nav ul{display:flex;flex-wrap:wrap;gap:.35rem .5rem;list-style:none;margin:0;padding:0}
nav a{display:block;text-decoration:none;border:1px solid var(--line);border-radius:2rem;padding:.2rem .8rem;font-size:.9rem;
background:var(--card)}
nav a:hover{border-color:var(--accent)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1.4rem 0 0;padding:0}
.tiles div{display:flex;flex-direction:column-reverse;justify-content:flex-end;background:var(--card);border:1px solid var(--line);
border-radius:.75rem;padding:.75rem .95rem}
.tiles dd{margin:0;font-size:1.6rem;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.25}
.tiles dt{color:var(--soft);font-size:.85rem;line-height:1.35}
section{margin-top:2.75rem;scroll-margin-top:1rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.6rem .75rem .6rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600}
thead th{color:var(--soft);font-size:.85rem;font-weight:500;padding-top:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td ul{margin:.15rem 0 0;padding:0;list-style:none;color:var(--soft);font-size:.9rem}
.steps tbody th{width:15rem}
.steps th small{display:block;font-weight:400;color:var(--soft)}
.time svg{display:block;width:8rem;height:.3rem;margin:.4rem 0 0 auto;border-radius:.2rem}
svg .track{fill:var(--track)}svg .edge{fill:var(--accent)}svg .refused{fill:var(--other)}
.card{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:1.1rem 1.2rem;margin:.9rem 0 0}
figure.card{margin-bottom:1.6rem}
figcaption{margin-bottom:.7rem}
.plot{width:100%;height:7rem;display:block}
.axis{display:flex;justify-content:space-between;font-size:.8rem;color:var(--soft);font-variant-numeric:tabular-nums;
border:solid var(--line);border-width:1px 0;padding:.1rem 0;margin:.15rem 0}
.key{font-size:.88rem;color:var(--soft);margin:.3rem 0}
.key::before{content:"";display:inline-block;width:.8em;height:.8em;border-radius:.15em;margin-right:.5em;background:var(--accent)}
.key.r::before{background:var(--other)}
details{margin-top:.9rem}
summary{cursor:pointer;color:var(--accent);font-size:.9rem}
.scroll{overflow-x:auto}
.scroll td,.scroll th{padding:.35rem .9rem .35rem 0;font-size:.9rem}
.pair{background:var(--card);border:1px solid var(--line);border-radius:.75rem;margin:1rem 0 0;overflow:hidden}
.pair>div:first-child{padding:.65rem 1.1rem;border-bottom:1px solid var(--line);display:flex;flex-wrap:wrap;gap:.3rem .9rem;
align-items:baseline}
.pair .why{flex-basis:100%;margin:0;color:var(--other);font-weight:550;overflow-wrap:anywhere}
.pair .score{color:var(--soft);font-size:.88rem;font-variant-numeric:tabular-nums}
.pair .score b{color:var(--ink);font-weight:600}
.texts{display:grid;grid-template-columns:1fr 1fr}
.texts>div{padding:.8rem 1.1rem 1rem;min-width:0}
.texts>div+div{border-left:1px solid var(--line)}
.id{margin:0 0 .3rem;font-size:.82rem;color:var(--soft);overflow-wrap:anywhere}
.text{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.95rem}
mark{background:var(--mark);color:var(--mark-ink);border-radius:.2rem;padding:.05em .1em;box-decoration-break:clone;
-webkit-box-decoration-break:clone}
.copy{display:grid;grid-template-columns:5.5rem 1fr;gap:.3rem 1.1rem;align-items:baseline}
.copy .count{font-size:1.35rem;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.2}
.copy .count small{display:block;font-size:.8rem;font-weight:400;color:var(--soft)}
.sizes th{white-space:nowrap;font-weight:500;width:8rem}
.sizes .draw{width:45%}
.sizes svg{display:block;width:100%;height:1rem;margin-top:.25rem}
.sizes th,.sizes td{border:0;padding:.22rem .9rem .22rem 0}
dl.words{display:grid;grid-template-columns:max-content 1fr;gap:.4rem 1.2rem;margin:.6rem 0 0}
dl.words dt{font-weight:600}dl.words dd{margin:0;color:var(--soft)}
footer{margin-top:3rem;padding-bottom:3rem;color:var(--soft);font-size:.88rem;overflow-wrap:anywhere}
@media (max-width:44rem){
header{padding-top:1.5rem}
.tiles{grid-template-columns:1fr 1fr}
.texts{grid-template-columns:1fr}
.texts>div+div{border-left:0;border-top:1px solid var(--line)}
.steps thead,.tables thead{display:none}
.steps tr,.tables tr{display:block;border-bottom:1px solid var(--line);padding:.7rem 0}
.steps th,.steps td,.tables th,.tables td{display:block;width:auto;border:0;padding:0}
.steps .time{text-align:left;color:var(--soft);font-size:.88rem;margin-top:.3rem}
.steps .time::after{content:" s"}
.steps .time svg{display:none}
.tables td{margin-top:.2rem}
.sizes .draw{display:none}
.copy{grid-template-columns:1fr}
dl.words{grid-template-columns:1fr;gap:0}dl.words dd{margin-bottom:.5rem}
}
@media print{nav{display:none}.pair,.card,tr{break-inside:avoid}body{background:#fff}}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
"""
