// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace millrace::report {

/// The colors c0 to c5 are those of Okabe and Ito, darker on white and lighter on black.
inline constexpr std::string_view kPageStyle = R"css(
:root{color-scheme:light dark;--page:#f6f8fa;--card:#fff;--ink:#1f2328;--muted:#59636e;
--edge:#d1d9e0;--grid:#e4e8ec;--note:#fff8e0;--shade:#0005;--s0:#0072b2;--s1:#d55e00;--s2:#00825f;--s3:#b0578f;
--s4:#a87400;--s5:#2f8fc4}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--card:#161b22;--ink:#e6edf3;--muted:#9aa4af;
--edge:#30363d;--grid:#262c34;--note:#2b2410;--shade:#fff6;--s0:#56b4e9;--s1:#f2894a;--s2:#2cc295;--s3:#e39cc6;
--s4:#e6b422;--s5:#9cc9f5}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 40px}
h1{font-size:24px;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:19px;margin:36px 0 12px;overflow-wrap:anywhere}
h3{font-size:15px;margin:22px 0 8px}
p{margin:6px 0}
small,.muted{color:var(--muted)}
p.muted{margin:8px 0 14px}
.lead{color:var(--muted);margin:4px 0 18px;overflow-wrap:anywhere}
.state{display:inline-block;vertical-align:middle;margin-left:8px;padding:1px 10px;font-size:13px;
font-weight:600;border-radius:12px;border:1px solid currentColor}
.finished{color:var(--s2)}.running{color:var(--s0)}.stopped,.unfinished{color:var(--s1)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px}
.card,.tile{background:var(--card);border:1px solid var(--edge);border-radius:8px}
.tile{padding:10px 14px}
.tile b{display:block;font-size:21px;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:var(--muted);font-size:13px}
.notes{background:var(--note);border:1px solid var(--edge);border-radius:8px;padding:8px 16px;
margin:14px 0;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:14px;
margin-top:14px}
figure{margin:0}
.card{padding:12px 14px;margin-bottom:14px;min-width:0}
.charts .card{margin:0}
figcaption{font-weight:600;margin-bottom:4px}
figcaption small{font-weight:400}
svg{display:block;width:100%;height:auto}
svg text,svg [fill="#767676"]{fill:var(--muted);font-family:inherit}
svg text[fill="#000000"]{fill:#000}
.scroll{overflow-x:auto;background:linear-gradient(90deg,var(--card) 40%,transparent) left/50px 100%,
linear-gradient(270deg,var(--card) 40%,transparent) right/50px 100%,
linear-gradient(90deg,var(--shade),transparent) left/14px 100%,
linear-gradient(270deg,var(--shade),transparent) right/14px 100%,var(--card);
background-repeat:no-repeat;background-attachment:local,local,scroll,scroll,scroll}
.scroll svg{min-width:900px}
.ribbon svg{min-width:620px}
.c0{--c:var(--s0)}.c1{--c:var(--s1)}.c2{--c:var(--s2)}.c3{--c:var(--s3)}.c4{--c:var(--s4)}
.c5{--c:var(--s5)}
.thin path{fill:none;stroke:var(--c);stroke-width:1.2;opacity:.8}
.dotted path{fill:none;stroke:var(--c);stroke-width:2.2}
.solid path{fill:none;stroke:var(--c);stroke-width:1.6}
.dotted circle{fill:var(--c)}.again path{stroke-dasharray:6 3}
.grid{stroke:var(--grid)}
path.mark{stroke:var(--muted);stroke-dasharray:3 3}
rect.layer{fill:var(--c);stroke:var(--card)}svg text.layer{fill:var(--card)}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;color:var(--muted)}
.legend span{overflow-wrap:anywhere}
.legend span::before{content:"";display:inline-block;width:18px;margin-right:6px;
vertical-align:middle;border-top:2px solid var(--c,var(--muted));opacity:.8}
.legend .solid::before{opacity:1}
.legend .dotted::before{border-top-width:4px;opacity:1}
.legend .again::before{border-top-style:dashed}
.legend .mark::before{border-top:2px dashed var(--muted)}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid var(--grid);
vertical-align:top}
th{color:var(--muted);font-weight:600;white-space:nowrap}
tr:last-child td{border-bottom:0}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.scroll td{white-space:nowrap}
.wrap td{white-space:normal;overflow-wrap:anywhere;min-width:70px}
details{margin:8px 0}summary{cursor:pointer;color:var(--muted)}
code,.log{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
overflow-wrap:anywhere}
.log{margin:0;white-space:pre-wrap}
footer{margin-top:36px;font-size:13px;color:var(--muted)}
@media(max-width:960px){figure.scroll figcaption::after{content:" \2194  scroll";float:right;
font-weight:400;color:var(--muted)}}
@media(max-width:600px){figure.scroll figcaption::after{float:none;display:block}
.scroll table{font-size:13px}main{padding:18px 12px 30px}.tile b{font-size:18px}
.tiles{grid-template-columns:1fr 1fr}.charts svg text,.ribbon svg text{font-size:15px}}
)css";

}  // namespace millrace::report
