"""The point grids of the IQ1, IQ2 and IQ3 formats and the table of IQ4: facts of those formats, which no rule makes.

A point is eight small numbers (IQ3: four) out of three or eight levels; a grid lists its points in ascending order, so
it is the set of its points. Owns the sets, read once out of the tables of the PyPI package gguf: bit number
`sum over i of level_i * levels^i` of a set is 1 if the grid has that point. Refuses nothing. The kernels hold the same
bits in native/kernels/grids.h, which this package may not import; a test holds them equal.
"""

from __future__ import annotations

import base64
import zlib
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Int8s = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]


class _Shape(NamedTuple):
    points: int
    numbers: int  # of a point
    levels: tuple[int, ...]  # what they are worth


_IQ2_LEVELS: Final = (8, 25, 43)
_SHAPES: Final = {  # in the order of their sets
    "IQ2_XXS": _Shape(256, 8, _IQ2_LEVELS),
    "IQ2_XS": _Shape(512, 8, _IQ2_LEVELS),
    "IQ2_S": _Shape(1024, 8, _IQ2_LEVELS),
    "IQ3_XXS": _Shape(256, 4, (4, 12, 20, 28, 36, 44, 52, 62)),
    "IQ3_S": _Shape(512, 4, (1, 3, 5, 7, 9, 11, 13, 15)),
    "IQ1": _Shape(2048, 8, (-1, 0, 1)),
}

TABLE: Final[Int8s] = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
"""What each nibble of IQ4_NL and IQ4_XS is worth."""

EIGHT_SIGNS: Final[Bytes] = np.array([s | (s.bit_count() & 1) << 7 for s in range(128)], np.uint8)
"""Eight signs (bit i: value i is negative) from the seven that are stored: the number of minuses is even."""


@cache
def grid(name: str) -> Int8s:
    """The points of a grid, int8 [points, numbers]; `name` is a format, or "IQ1" for both of IQ1."""
    shape, before = _SHAPES[name], list(_SHAPES).index(name)
    start = sum(_set_bytes(other) for other in list(_SHAPES.values())[:before])
    packed = np.frombuffer(zlib.decompress(base64.b85decode(_SETS)), np.uint8)[start : start + _set_bytes(shape)]
    numbers = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
    base = len(shape.levels)
    points = numbers[:, None] // base ** np.arange(shape.numbers) % base
    values: Int8s = np.array(shape.levels, np.int8)[points]
    return values


def _set_bytes(shape: _Shape) -> int:
    """One bit for each possible point, in whole words of 64 bits."""
    possible: int = len(shape.levels) ** shape.numbers
    return -(-possible // 64) * 8


_SETS: Final = (
    "c-nneO{^S85w32!QSUfdJ&zg1;?!^a946z)GPw~hJ=U&d?8|JlBkn$#fFi`1pYiZsSkDVmY=J;<84q@{9!E~_0hzVrNI3<I1BhD=7Wfe"
    "1=L1qMAR`f~yJvQGABNHHzTK{_s;{cPs_vJEK`zH>3M?3d1OTQX01f6FKqhtS0|}VUa2>@Q-x&Y_vn9p#Ag~+V%W6sJo`6Y-+n5iG;1_"
    "MQ@F8xaWExF6E!n-T3-@qhL<Wc7FIjcnnKnNOcb1$|*6#zIqEz?0S*O#<%*!EQu=zN68D>LD3>l<TAA`Z(;n&h`lLqK2QUXKBAjx1{l0"
    "GT+EyorkBUXiN=nfb)S+mGidzfScX1y-9PinW3PNauz7NkE!89X!gwHOXRCYxO;m|iKa3|QLeAxP`d=A3MVweDdEkH|g^>$suMp?;>;#"
    "v}iSY=z`-HlOkRnGgHF+wwf0=94s>kXfE*lT;#MXH#q!282LnM4=%Oijd2U**r?_2$*v}a6Qq{TpEy!IL^%SDQfB7Ac```{63?`;KZg)"
    "r+sL)Ebc4k(6yDnfnRs1ok3ukG+w*LBW~k3wdCvj#tBKEKA95hMfNsrD-fIiu?yM8)rAaW3@;_UK}?iwDS{$bb8Ql(<<K{TbY4^If1pm"
    "6UK=t4zDaG+HoelMCv^*QZKg2HhSnWLq~73(?s6y%tZb81jyFWF(ZO}LJWM?x8;NH9MA9KAAv1QfkaX<}HVTvFG?>}G(Q6ddL%-v0lWa"
    "3w50h3h=CVOt$IDHIqmi+h2XY-`aJWg>=5QHCFmj8nO(vU59rRupYz~;sWE$s_t^^%wK72YNxxUFm?&pT)dBDQ}X`bZ_d>{Wza6>qoOt"
    "U->@MSsxMbp3%Hq4C{GDY*8jZtKZ9!T!a4(yvLS`McHwxn^92apA6$~ah74hD_L8VtB&CAQ?084*HsBIzb>NA}q?oTi)+A7&YLrqhxzH"
    "7(0wj8SYD^!o$MD*FgS+60BG&aq93AEs|i%waG#+29?*G-M`ZgDcP7JOC%k(jFlikbx7iVN__yWM3UL7+Nj(uaE;<ilEb48H5hJ4H-pt"
    "{tgD+z_1jXgd7oSX=!eAC=Co|i%h2L2Bnp)8bsP`xVa-YnB>L+jtW1R`8aN1;=toP@WW0EtL%3JrVp7IQMMXVMr6#8)v01FbHkNME;}t"
    "-6xq)nN7`rP(3h*Q&HN_AO~XG#eq`@V_Q$*ITU7^cI!-%-q#L@2P8r<;U7G`%1Y{V`VZ|vf#vYG2#d#G{UO@?}<jUy@C}aU~39D2qt2_"
    "l1QSi7I7KW|VwWP<X9k(0^HQu9@cYD%MwT93vb8lk&Lt^#jgqOS^xQV(v_|~5=z6$g<#OP@Y1St2=zOw#I{yd{>kW!=NVlQwdHQ<$vTZ"
    "0n`JLL+fVZJ_k35JuRw|={EB6}FCQK$GYpQ$|}bgy9VE3ESX#2ROA+xm^8Kkp33jD70f#cH^w>*s+QirRs9<`%1Q(A{ZFm}bPU;8MGj5"
    "2@QYtKRv>adE@rSD!zAIg${uUw=LFuX`{O5kDt+5s~>88&Pv&Ohf}(Xb;U{c0>Gas`LCU{widYo%iVoDUg!uJ{u{*u8v9{H<CC2Z;bn_"
    ")Iz>ud5%0$Mt&==c*2Vp`Q@E0hVrZ6U7~Z?Iza=EVaJp(+QH==Nm)SzkUe7rH5JuFnA>j4lAlsR6X}_gU`!Z7C5As0sW1oP3|hs16)0B"
    ">&vIc&X#9gCxX-RIWFFb|*tS5jdfQZx0xwb65blVPhTgQcTFfNgb<Q>rflJJ1a0Ta8!Yqv$p&~Vz-$m9*s>BxlU*c}D+BjYHX3)>A#H^"
    "Y#>{5TRluR)~B<%`i3dvy9b*$<O*x9;*1IS!_7;-em-&-k0L#>Y;gCi3CwV(ADX}V5={6w%<(=$^s`O4xARW)A{i3;|zpj6|@iICT{RP"
    "$pX%KCFjJ-^p_Z?#9Tr@i*gvKAV(w&z6_pn7#${Gt{`f-AwEI(sG;6Y|oBwW?l#WM|Pf;?a9T#4(_+xQ*4KP~NY^@0JVo;P&O_cKgcro"
    "*XRil}GPJ%LjixdX+{HsYSK)N-7{Z_m}2tkviGHC4H%_Vi6HU7?x@@*`Dpyf*xPIqIOF)Ll}(`Kg$A|h`WojsLx^n%I0E2<6DW?!|$iX"
    "1g{c^u!b{Jypp_FLRBW>+UbB}$gu-YscI8YTfeDp$BX5)cJUo3JwfA$?jjw}7WKjVN&BJNUq%NXzq7yp`r<17{_cJ?elAgGcXeDPqE#R"
    "Lp^2LJep&x*Vfrsw%t00Pe$&Lux+q`vmiO;2|NW$?Pd1|R;)4dRy-c5bdi~(x-%l=1{p9`+o;>}>4?p<i`^$&l{MVO1`{0GATaW)*MY6"
    "qrbhj0E7Dvk4pDlMD|EORWUb^_{!n=MFFl6zl-2z%B-rMT;<>j}^7#eu9_#%`-z_+Wmy+_}^U)2w2@vWbq`s1C)vXrOVhjI9)8w@;?2P"
    "McgRkmMUMlbKyqv9A;%>{Z1FA$iqcS~F4R>kd)y)9d1UJFATqG+v~2xq8h#B0^-ciXlA<&}><inhhrXpJfrBBS2$M4Kc9ct&e`0oLFnH"
    "7~tmSc0}`tM~V*m!ONXXuVj(aC1(h`u>sluBevh?_kK+|9QJruf`XDTc7@<@F+6jwF^ij+O{X#gXU)42q9HnMNl4fRrV}JZ+;%mwN%^y"
    "`Gs*;Wsa0C-~H5d6Z-O&>Y$-eo*l)H1MtsJ3^x|kBAoAtdF*L{D;P3022Jn$2Tft>1O"
)
