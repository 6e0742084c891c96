import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rq_core import App
from rq_core.web.dashboard import dashboard
from rq_core.web.tokens import Access

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")

engine = create_async_engine(f"sqlite+aiosqlite:///{DATABASE}")
jobs = App(inbox=f"sqlite:///{DATABASE}")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    to: Mapped[str]


@jobs.task(queue="mail")
async def send(order_id: int) -> None:
    async with AsyncSession(engine) as session:
        order = await session.get_one(Order, order_id)  # it is committed: the job was, too
        print(f"to {order.to}: thank you for order {order.id}")


def who(request: Request) -> Access | None:
    user = request.headers.get("x-user")  # what your own login says
    return Access(user, see_arguments=False, role="viewer") if user else None


page = dashboard(jobs, authorize=who, allow_hosts=["localhost", "testserver"])


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with jobs, page.router.lifespan_context(page):  # a mounted app has no lifespan of its own
        yield


api = FastAPI(lifespan=lifespan)
api.mount("/queues", page)


@api.post("/orders", status_code=202)
async def post_order(to: str) -> dict[str, str]:
    async with AsyncSession(engine) as session, session.begin():
        session.add(order := Order(to=to))
        await session.flush()  # gives the order its id
        job = await send.within(session).enqueue_async(order_id=order.id)
        if "@" not in to:
            raise HTTPException(422)  # rolls both back: the order, and the job
        return {"order": str(order.id), "job": job.id}


@api.get("/mails/{job}")
async def get_mail(job: str) -> dict[str, str]:
    return {"state": await jobs.handle_by_id("mail", job).state_async()}
